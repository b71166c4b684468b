"""Requests in the engine, those that go through it together as one record, and the time of a run turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.serving.run import StepPrices

STEPS_AT_ONCE = 1 << 16
"""Decode steps that are priced together, at least: enough for numpy, few enough for memory."""


@dataclass(eq=False, slots=True)
class Group:
    """``count`` requests alike: ``made`` response tokens so far, ``cached`` tokens computed of what each must read.

    While they decode they have ``ticks - base`` response tokens, all but the last of them in the cache. ``sent`` and
    ``first`` are turns of the ``Clock``: when they were sent, and had their first token (-1: not yet).
    """

    sent: int
    prompt: int
    response: int
    count: int = 1
    order: int = 0
    cached: int = 0
    made: int = 0
    base: int = 0
    first: int = -1
    state: Literal["waiting", "prefill", "decode", "done"] = "waiting"

    @property
    def missing(self) -> int:
        """Tokens that each still has to compute before it decodes."""
        return self.prompt + self.made - self.cached

    def split(self, count: int) -> Group:
        """The group itself where it has no more than ``count``, or so many of it on their own."""
        if count == self.count:
            return self
        self.count -= count
        return replace(self, count=count)


@dataclass(eq=False, slots=True)
class Clock:
    """Time of a run. ``turn`` counts what has happened; ``now`` is its time, as long as every turn gets a price.

    Decode steps that nobody waits for are only written down (``later``) and priced many at a time.
    """

    prices: StepPrices
    now: float = 0.0
    turn: int = 0
    taken: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    steps: int = 0

    def pass_s(self, seconds: float) -> None:
        """Something that takes so long."""
        self.now += seconds
        self.taken.append(seconds)
        self.turn += 1

    def later(self, active: int, context: int, steps: int) -> None:
        """A stretch of decode steps, as of ``StepPrices.stretches_s``."""
        self.turns.append(self.turn)
        self.stretches.append((active, context, steps))
        self.taken.append(0.0)
        self.turn += 1
        self.steps += steps
        if self.steps >= STEPS_AT_ONCE:
            self._price()

    def times(self) -> Floats:
        """Time after so many turns, from 0 on."""
        self._price()
        return np.concatenate([[0.0], np.cumsum(self.taken)])

    def _price(self) -> None:
        if self.turns:
            seconds = self.prices.stretches_s(*np.asarray(self.stretches).T)
            for turn, taken in zip(self.turns, seconds.tolist(), strict=True):
                self.taken[turn] = taken
        self.turns, self.stretches, self.steps = [], [], 0
