"""Plans measured in turns, at the pace of a profile, and again where visits do not repeat. A visit is a run of a plan.

A core of a shared machine has two speeds, between which it changes within a second (``core_pace``). So the pace of the
cores that a plan takes is looked at before and after each iteration, and the iteration is brought to the pace of the
profile whose prices it is compared with: its calls divided by how many times as long the same training steps took
beside it, what lies between them in part (``FOLLOWS``). Nothing of it looks at a prediction.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from executor.profiling.core_pace import CorePace
    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Span, Timeline

CALM = 0.10
"""Visits whose medians lie so close to each other repeat: those of an idle machine do, to 1 to 5 %."""
WARMUP = 5
FOLLOWS = 0.5
"""Share of the time between calls that follows a core's speed; the rest is waits, for a thread to wake and its turn.

On 320 iterations of five placements (docs/log.md, 2026-11-26) the logarithm of that time goes with 0.43 of that of the
steps beside it, training with 0.77, preparation with 0.84: what looks at a core miss takes a fifth from each.
"""
AT_MOST = 2
"""So many times the wanted visits are made of a plan whose visits do not repeat."""

Visit = list["Timeline"]


@dataclass(frozen=True)
class Made:
    """Iterations of a visit; what a training step took on its cores before each and after the last, seconds."""

    visit: Visit
    paces_s: tuple[float, ...]

    @property
    def of_each_s(self) -> list[float]:
        """Seconds of a step beside each iteration."""
        return [(before + after) / 2.0 for before, after in zip(self.paces_s, self.paces_s[1:], strict=False)]

    def at(self, pace_s: float) -> Visit:
        """The iterations, as long as they would have been on cores at this pace."""
        return [scaled(t, pace_s / own_s) for t, own_s in zip(self.visit, self.of_each_s, strict=True)]


@dataclass(frozen=True)
class Kept:
    """Visits of a plan that repeat, at the wanted pace; how many others were made, and the pace of the cores in all.

    ``pace_apart``: the middle half of all looks at the cores, as a share of their median.
    """

    visits: list[Visit]
    others: int
    pace_s: float
    pace_apart: float


class PaceWatch:
    """Watches a run: the cores' pace around each iteration after warm-up."""

    def __init__(self, pace_s: Callable[[], float]) -> None:
        self._pace_s = pace_s
        self._paces_s: list[float] = []

    def __call__(self, iteration: int, _: Mapping[str, float]) -> None:
        if iteration >= WARMUP - 1:
            self._paces_s.append(self._pace_s())

    def made(self, timelines: Sequence[Timeline]) -> Made:
        """The visit, of all iterations of the run."""
        return Made(list(timelines[WARMUP:]), tuple(self._paces_s))


def visit(facts: JobFacts, plan: Plan, config: RunConfig, iterations: int, cores: CorePace) -> Made:
    """Iterations of a run of a plan with pinned ranks, after warm-up, and the pace of their cores around each."""
    from executor.run import run

    watch = PaceWatch(lambda: cores.measure_s([pool.num_gpus for pool in plan.pools]))
    with tempfile.TemporaryDirectory() as folder:
        return watch.made(run(facts, plan, config, folder, WARMUP + iterations, watch=watch))


def scaled(timeline: Timeline, times: float) -> Timeline:
    """A timeline whose calls are so many times as long, and what lies between them as :func:`between` says."""
    path = sorted((span.start_s, span.end_s) for span in timeline.spans if span.critical)
    own_s = np.maximum.accumulate([0.0, *itertools.chain(*path), timeline.iteration_s])
    rest = between(times)
    lengths_s = np.diff(own_s) * np.where(np.arange(len(own_s) - 1) % 2, times, rest)
    then_s = np.concatenate([[0.0], np.cumsum(lengths_s)])

    def span_of(span: Span) -> Span:
        start_s, end_s = np.interp((span.start_s, span.end_s), own_s, then_s)
        ratio = (end_s - start_s) / span.duration_s if span.duration_s else times
        counts = span.counts
        if counts is not None:
            more = {"host_s": ratio * counts.host_s, "device_s": ratio * counts.device_s}
            counts = counts.model_copy(update=more)
        parts = {"compute_s": span.compute_s, "comm_s": span.comm_s, "late_s": span.late_s}
        inside = {name: ratio * s for name, s in parts.items()} | {"counts": counts}
        return span.model_copy(update={"start_s": float(start_s), "end_s": float(end_s), **inside})

    stages = {stage: times * s for stage, s in timeline.stages.items()}
    if "other" in stages:  # a rank's late start is in a call's span and between calls: whole iterations count
        calls_s = sum(s for stage, s in stages.items() if stage != "other")
        stages["other"] = max(float(then_s[-1]) - calls_s, 0.0)
    return timeline.model_copy(
        update={
            "iteration_s": float(then_s[-1]),
            "stages": stages,
            "spans": tuple(span_of(span) for span in timeline.spans),
        }
    )


def between(times: float) -> float:
    """How many times as long what lies between calls is where calls are so many times as long."""
    return 1.0 / (1.0 - FOLLOWS + FOLLOWS / times)


def median_s(visit: Sequence[Timeline]) -> float:
    """Seconds of a visit's median iteration."""
    return float(np.median([t.iteration_s for t in visit]))


def calm(visits: Sequence[Visit]) -> list[Visit]:
    """The most visits that repeat one another, in the order that they were made; of as many the faster ones."""
    best: list[Visit] = []
    for fastest in sorted(median_s(visit) for visit in visits):
        alike = [visit for visit in visits if fastest <= median_s(visit) <= (1.0 + CALM) * fastest]
        best = alike if len(alike) > len(best) else best
    return best


def visit_until_calm(
    plans: Mapping[str, Plan], wanted: int, make: Callable[[Plan], Made], pace_s: float
) -> dict[str, Kept]:
    """Visits of every plan that repeat, ``wanted`` of each where the machine lets it, brought to ``pace_s``.

    All plans are visited in turn, so that a disturbance does not hit one of them alone.
    """
    made: dict[str, list[Made]] = {name: [] for name in plans}
    for _ in range(AT_MOST * wanted):
        for name, plan in plans.items():
            if len(calm([one.at(pace_s) for one in made[name]])) < wanted:
                made[name].append(make(plan))
    return {name: _kept(some, pace_s) for name, some in made.items()}


def _kept(made: Sequence[Made], wanted_s: float) -> Kept:
    repeat = calm([one.at(wanted_s) for one in made])
    low, pace_s, high = (float(s) for s in np.quantile([s for one in made for s in one.paces_s], (0.25, 0.5, 0.75)))
    return Kept(repeat, len(made) - len(repeat), pace_s, (high - low) / pace_s)
