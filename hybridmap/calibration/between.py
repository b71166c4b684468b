"""What happens between the models' calls, by a log: the controller's calls, and seconds that have no name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridmap.runlogs.steady import usual
from profiles.records import Basis
from simulator.calibration.factors import without_dispatch
from simulator.calibration.posterior import LEAST_ERROR, SCALE_SPREAD, SCALES
from simulator.plan.dataflow import CONTROLLER
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridmap.runlogs.records import LoggedStep
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normal numbers: the root of pi / 2."""
DISPATCH = (0.1, 10.0)
"""Factors on what comes before calls; beyond them something else ran between calls."""
STARTS_DIFFER = 0.06
"""Standard deviation, relative, of what comes before calls between starts of a run (docs/log.md, 2026-11-27)."""
MEASURED_TO, GUESSED_TO = 0.05, 1.0
"""Standard deviation of the factor's logarithm where a profile measured what comes before calls, and elsewhere.

A profile has three starts, 3.5 % together; what the machine does between profile and run is beside that.
"""
ROBUST = 1.4826
"""Standard deviation over the median distance from the median, of normal numbers."""


@dataclass(frozen=True)
class Between:
    """Seconds per sample of each of the controller's calls, and the standard deviation of what is known of these."""

    seconds: Mapping[str, float]
    deviations: Mapping[str, float]


def between(steps: Sequence[LoggedStep], plan: Plan, facts: Facts) -> Between:
    """The controller's calls as logged, and with the last of them what has no name.

    Nothing where the log says when calls began: what lies between them is known then (``before_calls``).
    """
    if any(step.between_s is not None for step in steps):
        return Between({}, {})
    mine = [call.key for call in facts.dataflow.calls if call.role == CONTROLLER]
    found: dict[str, list[Sequence[float]]] = {}
    for key in mine:
        seconds = [step.calls[key] for step in steps if key in step.calls]
        if seconds:
            found[key] = [seconds]
    models = {call.key for call in facts.dataflow.calls if call.role != CONTROLLER}
    if plan.schedule == "sync" and models <= {key for step in steps for name in step.calls for key in name.split("+")}:
        unnamed = [s for step in steps if (s := step.unnamed_s) is not None]
        if unnamed:
            found.setdefault(mine[-1], []).append(unnamed)
    samples = facts.workload.num_samples
    return Between(
        {key: sum(float(np.median(s)) for s in several) / samples for key, several in found.items()},
        {key: float(np.hypot.reduce([_error_s(s) for s in several])) / samples for key, several in found.items()},
    )


def before_calls(steps: Sequence[LoggedStep], plan: Plan, facts: Facts) -> float | None:
    """What comes before calls over its price, as far as a run can tell it from luck (``_believed``).

    ``None`` where no step says when its calls began, or it has no price.
    """
    measured = [step.between_s for step in usual(steps) if step.between_s is not None]
    if not measured:
        return None
    priced_s = simulate(plan, facts).iteration_s - simulate(plan, without_dispatch(facts)).iteration_s
    least, most = DISPATCH
    if priced_s <= 0.0:
        return None
    known = MEASURED_TO if facts.training.basis("dispatch_s") is Basis.MEASURED else GUESSED_TO
    return min(_believed(max(float(np.mean(measured)) / priced_s, least), known), most)


def _believed(ratio: float, known: float) -> float:
    """The factor by a normal prior about 1 and one start of a run; far from the prior the run says how wide it is."""
    log, error = float(np.log(ratio)), STARTS_DIFFER**2
    priors = [(scale, (scale * known) ** 2) for scale in SCALES]

    def likely(scale: float, variance: float) -> float:
        whole = variance + error
        return -0.5 * float(np.log(whole) + log**2 / whole + (np.log(scale) / SCALE_SPREAD) ** 2)

    variance = max(priors, key=lambda prior: likely(*prior))[1]
    return float(np.exp(log * variance / (variance + error)))


def _error_s(seconds: Sequence[float]) -> float:
    """Standard error of the median of steps; of fewer than three steps it may be off by all of it."""
    middle = float(np.median(seconds))
    if len(seconds) < 3:
        return middle
    spread = ROBUST * float(np.median(np.abs(np.asarray(seconds) - middle)))
    return float(np.hypot(OF_MEDIAN * spread / len(seconds) ** 0.5, LEAST_ERROR * middle))
