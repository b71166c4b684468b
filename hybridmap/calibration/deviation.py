"""A run beside its plan: what each stage takes and was to take, what explains it, and whether another plan pays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hybridmap.calibration.learn import cases_of, observed, timed_together
from hybridmap.calibration.lengths import learn_lengths, with_lengths
from hybridmap.runlogs.steady import steady
from simulator.calibration.factors import calibrated, layer_of, uncalibrated
from simulator.calibration.fit import planned_s, together_s
from simulator.calibration.posterior import WHOLE

if TYPE_CHECKING:
    from hybridmap.calibration.learn import Learned
    from hybridmap.runlogs.records import RunLog
    from profiles.calibration import LearnedLengths
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

NORMAL = 0.10
"""A stage within this of its prediction goes as planned: measurements days apart differ by as much."""


@dataclass(frozen=True)
class StageNow:
    """A stage of a running job. ``planned_s`` at the lengths of its job, ``at_lengths_s`` at those of the log."""

    calls: tuple[str, ...]
    measured_s: float
    planned_s: float
    at_lengths_s: float

    @property
    def off(self) -> float:
        """Measured over planned, less one."""
        return self.measured_s / self.planned_s - 1.0 if self.planned_s > 0 else 0.0

    @property
    def because(self) -> str:
        """Which explains more of the difference: lengths, or prices."""
        if abs(self.off) < NORMAL:
            return ""
        by_lengths = self.at_lengths_s / self.planned_s
        by_prices = self.measured_s / self.at_lengths_s
        return "lengths" if abs(np.log(by_lengths)) > abs(np.log(by_prices)) else "prices"


@dataclass(frozen=True)
class Watched:
    """What a log says beside its plan. ``headroom_gib`` is what the fullest GPU had left, where the log says."""

    steps: int
    last_step: int
    stages: tuple[StageNow, ...]
    measured_s: float | None
    planned_s: float
    lengths: LearnedLengths | None
    headroom_gib: float | None


def watched(log: RunLog, plan: Plan, facts: Facts) -> Watched:
    """Compare the steps of a log with what was planned; facts may carry a calibration, which then counts as planned."""
    steps = steady(log, plan.schedule == "sync").steps
    lengths = learn_lengths(steps, facts.workload.response.maximum)
    groups = timed_together(steps, facts, plan)
    cases = cases_of(steps, plan, facts, lengths)
    planned, now = planned_s(plan, facts), [planned_s(case.plan, case.facts) for case, _ in cases]

    def stage(group: tuple[str, ...]) -> StageNow:
        seen = observed(cases, [group])
        weight = [len(cases[o.case][1]) for o in seen]
        measured = np.average([o.seconds for o in seen], weights=weight)
        expected = np.average([together_s(plan, facts, now[o.case], group) for o in seen], weights=weight)
        return StageNow(group, float(measured), together_s(plan, facts, planned, group), float(expected))

    stages = [stage(group) for group in groups if group != (WHOLE,)]
    whole = [s for step in steps if (s := step.iteration_s) is not None]
    memory = [step.memory_gib for step in steps if step.memory_gib is not None]
    return Watched(
        len(steps),
        max(step.number for step in steps),
        tuple(stages),
        float(np.mean(whole)) if whole else None,
        planned[WHOLE],
        lengths,
        facts.device.spec.memory_bytes / 2**30 - max(memory) if memory else None,
    )


@dataclass(frozen=True)
class Switch:
    """The best plan by what the log says of prices and lengths, and when going over to it has paid.

    ``between_s``: within which its iterations lie nine times in ten.
    """

    plan: Plan
    now_s: float
    then_s: float
    between_s: tuple[float, float]

    def pays_after(self, restart_s: float, then_s: float | None = None) -> float:
        """Iterations until the restart is made up for; infinite where the plan is not faster than now."""
        then_s = self.then_s if then_s is None else then_s
        return restart_s / (self.now_s - then_s) if then_s < self.now_s else float("inf")


def facts_by(learned: Learned, facts: Facts) -> Facts:
    """The job's facts with the prices and the lengths of a log."""
    now = calibrated(uncalibrated(facts), layer_of([learned.file]))
    if learned.lengths is None:
        return now
    work = now.workload
    mean = min(learned.lengths.response_mean, float(work.response.maximum))
    prompt = learned.lengths.prompt_mean and min(learned.lengths.prompt_mean, float(work.prompt_length))
    response = with_lengths(work.response, mean, learned.lengths.response_p99)
    return replace(now, workload=replace(work, response=response, prompt_tokens=prompt or work.prompt_tokens))
