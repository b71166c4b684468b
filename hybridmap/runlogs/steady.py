"""Which steps of a log say how a run goes: without those in which things are started or something else is done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hybridmap.runlogs.records import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hybridmap.runlogs.records import LoggedStep, RunLog
    from profiles.records import Floats

WARM_UP_EXCESS = 1.15
"""A first step that takes so much longer than the median per token is one in which things were started."""
MOST_WARM_UP = 5
FAR = 6.0
"""Steps so many robust standard deviations from the median are interruptions, not the run."""
EACH_END = 0.25
"""Share of steps, the shortest and the longest, that are not of usual length."""
LONGER = 1.1
"""A call that takes so many times its step is damage: clocks of one machine agree."""


@dataclass(frozen=True)
class Steady:
    """The steps that count, and the numbers of those that do not, with why."""

    steps: tuple[LoggedStep, ...]
    warm_up: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    contradictory: tuple[int, ...] = ()

    @property
    def left_out(self) -> dict[str, tuple[int, ...]]:
        """The numbers of steps that do not count, by why."""
        reasons = ("warm-up", self.warm_up), ("interrupted", self.interrupted), ("contradictory", self.contradictory)
        return {why: steps for why, steps in reasons if steps}


def steady(log: RunLog, synchronous: bool = False) -> Steady:
    """Leave out warm-up and interruptions. Validation and checkpoints stay: their seconds are known and taken off.

    In a ``synchronous`` run a step that is shorter than one of its calls contradicts itself.
    """
    timed = [step for step in log.steps if step.calls or step.iteration_s is not None]
    wrong = _numbers([step for step in timed if synchronous and _contradicts_itself(step)])
    steps = [step for step in timed if step.number not in wrong]
    found = _as_usual(steps)
    return replace(found, contradictory=wrong)


def _contradicts_itself(step: LoggedStep) -> bool:
    whole = step.seconds.get(STEP)
    return whole is not None and max(step.calls.values(), default=0.0) > LONGER * whole


def _as_usual(steps: Sequence[LoggedStep]) -> Steady:
    if len(steps) < 3:
        return Steady(tuple(steps))
    whole = np.asarray([_whole_s(step) for step in steps])
    middle = float(np.median(whole))
    first = 0
    while first < min(MOST_WARM_UP, len(steps) - 2) and whole[first] > WARM_UP_EXCESS * middle:
        first += 1
    far = {first + i for i in np.flatnonzero(far_off(whole[first:]))}
    kept = tuple(step for i, step in enumerate(steps) if i >= first and i not in far)
    return Steady(kept, _numbers(steps[:first]), _numbers([steps[i] for i in sorted(far)]))


def usual(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """The middle half of the steps by their whole times, of fewer than four all.

    Their calls add up to a usual step. Middles of each call do not: where one call or another is held up in every step,
    each usually is not, and the usual step is longer than all of these together.
    """
    cut = int(EACH_END * len(steps))
    return sorted(steps, key=_whole_s)[cut : len(steps) - cut]


def far_off(seconds: Floats) -> NDArray[np.bool_]:
    """Which of at least three times are no part of the run: far from the median by its spread, and by half of it."""
    if len(seconds) < 3:
        return np.zeros(len(seconds), dtype=bool)
    middle = float(np.median(seconds))
    away = np.abs(seconds - middle)
    spread = 1.4826 * float(np.median(away)) + 0.01 * middle
    return np.asarray(away > max(FAR * spread, 0.5 * middle), dtype=bool)


def _whole_s(step: LoggedStep) -> float:
    return step.iteration_s if step.iteration_s is not None else sum(step.calls.values())


def _numbers(steps: Sequence[LoggedStep]) -> tuple[int, ...]:
    return tuple(step.number for step in steps)
