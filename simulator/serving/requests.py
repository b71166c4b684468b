"""Requests in the engine, those that go through it together as one record, and the time of a run turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.serving.run import Chunk, StepPrices


WAITS, LEFT = -1, -2
"""``Group.end`` of one that does not decode: not yet, or no more."""


@dataclass(eq=False, slots=True)
class Group:
    """``count`` requests alike, each with ``made`` response tokens when it last came in or left.

    While they decode, ``end`` is the tick at which they have all of their response, and each reads ``read`` tokens more
    than there were ticks; ``cached`` counts tokens computed of a prompt that is begun; ``order`` is that of admission.
    ``sent`` and ``first`` are turns of the ``Clock``: when they were sent, and had their first token (-1: not yet).
    """

    sent: int
    prompt: int
    response: int
    count: int = 1
    made: int = 0
    end: int = WAITS
    read: int = 0
    cached: int = 0
    order: int = 0
    first: int = -1

    def split(self, count: int) -> Group:
        """So many of them on their own."""
        self.count -= count
        own = (self.sent, self.prompt, self.response, count, self.made, self.end, self.read, self.cached, self.order)
        return Group(*own, self.first)


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
    stretches: list[int] = field(default_factory=list)  # active, context, steps: the other turns
    chunks: list[Chunk] = field(default_factory=list)

    def pass_s(self, seconds: float) -> None:
        """Something that takes so long."""
        self.now += seconds
        self.passed.append(seconds)
        self.turn += 1

    def later(self, stretches: list[int]) -> None:
        """Stretches of decode steps, active, context and steps of each, as of ``StepPrices.stretches_s``."""
        self.stretches += stretches
        self.turn += len(stretches) // 3

    def mixed_later(self, active: int, context: int, chunks: list[Chunk], heads: int) -> None:
        """A step with prefill, as of ``StepPrices.mixed_step_s``."""
        self.mixed += (self.turn, active, context, heads, len(chunks))
        self.chunks += chunks
        self.turn += 1

    def times(self) -> Floats:
        """Time after so many turns, from 0 on."""
        taken, rest = np.zeros(self.turn + 1), np.arange(self.turn + 1) > len(self.passed)
        taken[1 : len(self.passed) + 1] = self.passed
        if self.mixed:
            mixed = np.fromiter(self.mixed, np.int64).reshape(-1, 5)
            chunks = np.fromiter(chain.from_iterable(self.chunks), np.int64).reshape(-1, 2)
            taken[mixed[:, 0] + 1] = self.prices.mixed_steps_s(mixed[:, 1:], chunks)
            rest[mixed[:, 0] + 1] = False
        if self.stretches:
            stretches = np.fromiter(self.stretches, np.int64).reshape(-1, 3)
            taken[rest] = self.prices.stretches_s(*stretches.T)
        return np.cumsum(taken)
