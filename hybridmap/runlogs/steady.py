"""Which steps of a log say how a run goes: without those in which things are started or something else is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.runlogs.records import LoggedStep, RunLog

WARM_UP_EXCESS = 1.15
"""A first step that takes so much longer than the median per token is one in which things were started."""
MOST_WARM_UP = 5
FAR = 6.0
"""Steps so many robust standard deviations from the median are interruptions, not the run."""


@dataclass(frozen=True)
class Steady:
    """The steps that count, and the numbers of those that do not, with why."""

    steps: tuple[LoggedStep, ...]
    warm_up: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()


def steady(log: RunLog) -> Steady:
    """Leave out warm-up and interruptions. Validation and checkpoints stay: their seconds are known and taken off."""
    steps = [step for step in log.steps if step.calls or step.iteration_s is not None]
    if len(steps) < 3:
        return Steady(tuple(steps))
    whole = np.asarray([_whole_s(step) for step in steps])
    middle = float(np.median(whole))
    first = 0
    while first < min(MOST_WARM_UP, len(steps) - 2) and whole[first] > WARM_UP_EXCESS * middle:
        first += 1
    spread = 1.4826 * float(np.median(np.abs(whole[first:] - middle))) + 0.01 * middle
    far = {i for i in range(first, len(steps)) if abs(whole[i] - middle) > max(FAR * spread, 0.5 * middle)}
    kept = tuple(step for i, step in enumerate(steps) if i >= first and i not in far)
    return Steady(kept, _numbers(steps[:first]), _numbers([steps[i] for i in sorted(far)]))


def _whole_s(step: LoggedStep) -> float:
    return step.iteration_s if step.iteration_s is not None else sum(step.calls.values())


def _numbers(steps: Sequence[LoggedStep]) -> tuple[int, ...]:
    return tuple(step.number for step in steps)
