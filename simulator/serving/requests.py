"""A request in the engine or in line, and the time of a run turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.serving.run import StepPrices


WAITS, LEFT = -1, -2
"""``Request.end`` of one that does not decode: not yet, or no more."""


@dataclass(eq=False, slots=True)
class Request:
    """``whole`` tokens when it ends, ``response`` of them its response, ``size`` when it last came in or left.

    ``end`` is the tick at which it has all of its response; ``cached`` counts tokens computed of a prompt that is
    begun. ``sent`` and ``first`` are turns of the ``Clock``: when it was sent, and had its first token (-1: not yet).
    """

    sent: int
    whole: int
    response: int
    size: int
    end: int = WAITS
    cached: int = 0
    first: int = -1


@dataclass(eq=False, slots=True)
class Clock:
    """Time of a run. ``turn`` counts what has happened; ``now`` is its time, as long as every turn gets a price.

    Turns that nobody waits for any more are only written down (``later``, ``mixed_later``) and priced all together. All
    lists are flat, which is cheap to fill and to read.
    """

    prices: StepPrices
    now: float = 0.0
    turn: int = 0
    passed: list[float] = field(default_factory=list)  # the first turns
    mixed: list[int] = field(default_factory=list)  # turn, active, context, sampled, prompts
    new: list[int] = field(default_factory=list)  # tokens of each of these prompts
    past: list[int] = field(default_factory=list)  # which of them have tokens in the cache already, and how many
    stretches: list[int] = field(default_factory=list)  # active, context, steps: the other turns

    def pass_s(self, seconds: float) -> None:
        """Something that takes so long."""
        self.now += seconds
        self.passed.append(seconds)
        self.turn += 1

    def later(self, stretches: list[int]) -> None:
        """Stretches of decode steps, active, context and steps of each, as of ``StepPrices.stretches_s``."""
        self.stretches += stretches
        self.turn += len(stretches) // 3

    def mixed_later(self, active: int, context: int, new: list[int], past: list[int], heads: int) -> None:
        """A step with prefill, as of ``StepPrices.mixed_step_s``."""
        self.mixed += (self.turn, active, context, heads, len(new))
        if past:
            self.past += chain.from_iterable(enumerate(past, len(self.new)))
        self.new += new
        self.turn += 1

    def times(self) -> Floats:
        """Time after so many turns, from 0 on."""
        taken, rest = np.zeros(self.turn + 1), np.arange(self.turn + 1) > len(self.passed)
        taken[1 : len(self.passed) + 1] = self.passed
        if self.mixed:
            mixed = np.fromiter(self.mixed, np.int64).reshape(-1, 5)
            chunks, past = np.zeros((len(self.new), 2), np.int64), np.fromiter(self.past, np.int64).reshape(-1, 2)
            chunks[:, 0], chunks[past[:, 0], 1] = self.new, past[:, 1]
            taken[mixed[:, 0] + 1] = self.prices.mixed_steps_s(mixed[:, 1:], chunks)
            rest[mixed[:, 0] + 1] = False
        if self.stretches:
            stretches = np.fromiter(self.stretches, np.int64).reshape(-1, 3)
            taken[rest] = self.prices.stretches_s(*stretches.T)
        return np.cumsum(taken)
