"""Requests in the engine, those that go through it together as one record, and the time of a run turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats, Ints
    from simulator.serving.run import Mixed, StepPrices

STEPS_AT_ONCE = 1 << 16
"""Decode steps that are priced together: enough for numpy, few enough for memory."""


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

    def split(self, count: int) -> Group:
        """The group itself where it has no more than ``count``, or so many of it on their own."""
        if count == self.count:
            return self
        self.count -= count
        return Group(
            self.sent,
            self.prompt,
            self.response,
            count,
            self.order,
            self.cached,
            self.made,
            self.base,
            self.first,
            self.state,
        )


@dataclass(eq=False, slots=True)
class Clock:
    """Time of a run. ``turn`` counts what has happened; ``now`` is its time, as long as every turn gets a price.

    Turns that nobody waits for are only written down (``later``, ``mixed_later``) and priced all together.
    """

    prices: StepPrices
    now: float = 0.0
    turn: int = 0
    passed: list[tuple[int, float]] = field(default_factory=list)
    stretches: list[int] = field(default_factory=list)  # flat, which is cheap: turn, active, context, steps
    mixed_turns: list[int] = field(default_factory=list)
    mixed: list[Mixed] = field(default_factory=list)

    def pass_s(self, seconds: float) -> None:
        """Something that takes so long."""
        self.now += seconds
        self.passed.append((self.turn, seconds))
        self.turn += 1

    def later(self, active: int, context: int, steps: int) -> None:
        """A stretch of decode steps, as of ``StepPrices.stretches_s``."""
        self.stretches += (self.turn, active, context, steps)
        self.turn += 1

    def mixed_later(self, step: Mixed) -> None:
        """A step with prefill, as of ``StepPrices.mixed_steps_s``."""
        self.mixed_turns.append(self.turn)
        self.mixed.append(step)
        self.turn += 1

    def times(self) -> Floats:
        """Time after so many turns, from 0 on."""
        taken = np.zeros(self.turn + 1)
        if self.passed:
            turns, seconds = zip(*self.passed, strict=True)
            taken[np.asarray(turns) + 1] = seconds
        if self.mixed:
            taken[np.asarray(self.mixed_turns) + 1] = self.prices.mixed_steps_s(self.mixed)
        if self.stretches:
            stretches = np.asarray(self.stretches).reshape(-1, 4)
            taken[stretches[:, 0] + 1] = self._stretches_s(stretches[:, 1:])
        return np.cumsum(taken)

    def _stretches_s(self, stretches: Ints) -> Floats:
        parts = np.cumsum(stretches[:, 2]) // STEPS_AT_ONCE
        cuts = np.flatnonzero(np.diff(parts)) + 1
        return np.concatenate([self.prices.stretches_s(*part.T) for part in np.split(stretches, cuts)])
