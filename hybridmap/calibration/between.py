"""What happens between the models' calls, by a log: the controller's calls, and seconds that have no name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.calibration.posterior import LEAST_ERROR
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridmap.runlogs.records import LoggedStep
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normal numbers: the root of pi / 2."""
ROBUST = 1.4826
"""Standard deviation over the median distance from the median, of normal numbers."""


@dataclass(frozen=True)
class Between:
    """Seconds per sample of each of the controller's calls, and the standard deviation of what is known of these."""

    seconds: Mapping[str, float]
    deviations: Mapping[str, float]


def between(steps: Sequence[LoggedStep], plan: Plan, facts: Facts) -> Between:
    """The controller's calls as logged, and with the last of them what has no name."""
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


def _error_s(seconds: Sequence[float]) -> float:
    """Standard error of the median of steps; of fewer than three steps it may be off by all of it."""
    middle = float(np.median(seconds))
    if len(seconds) < 3:
        return middle
    spread = ROBUST * float(np.median(np.abs(np.asarray(seconds) - middle)))
    return float(np.hypot(OF_MEDIAN * spread / len(seconds) ** 0.5, LEAST_ERROR * middle))
