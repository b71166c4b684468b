"""Continuous batching with a cache that is too small for the fullest step: sequences wait, and are evicted.

The rules are those of a scheduler that gives cache as sequences grow: the newest sequence is evicted when the cache
is full, waits first in line, and is computed again when there is room. Steps are taken in chunks, as which sequences
run changes only where one ends or the cache fills.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import InfeasibleError
from simulator.rollout.drain import NUM_SEGMENTS, RolloutProfile

if TYPE_CHECKING:
    from profiles.records import Floats

CHUNK_STEPS = 16
"""Decode steps between two looks at the cache; single steps move a stage by under 0.5 %."""


def limited_profile(
    lengths: Floats, slots: int, prompt_tokens: float, kv_tokens: float, chunk_steps: int = CHUNK_STEPS
) -> RolloutProfile:
    """Profile of one replica whose cache is too small for its fullest step.

    Parameters
    ----------
    lengths
        Response tokens in arrival order, ``[num]``.
    slots
        Sequences that run at once.
    prompt_tokens
        Of each sequence.
    kv_tokens
        That the cache holds.
    chunk_steps
        Decode steps between two looks at the cache.

    Returns
    -------
    RolloutProfile
        At most ``NUM_SEGMENTS`` segments, with the tokens computed again.

    Raises
    ------
    InfeasibleError
        The longest sequence does not fit by itself.

    Notes
    -----
    Source: vLLM's scheduler (recompute preemption, newest first). Chunks move a stage by under 0.5 % against single
    steps.
    """
    longest = float(lengths.max()) + prompt_tokens
    if longest > kv_tokens:
        raise InfeasibleError(
            f"the KV cache of a replica holds {kv_tokens:.0f} tokens, one sequence needs {longest:.0f}"
        )
    return _Replica(lengths.tolist(), slots, prompt_tokens, kv_tokens, chunk_steps).run()


@dataclass(eq=False)
class _Replica:
    """``lengths`` are whole tokens, so ``done`` of each sequence is exact; ``log`` of (steps, active, tokens).

    All that run decode in step: of a running sequence only the step it ends at is kept, and ``done`` is written when
    it stops, so that a chunk costs the same however many run. ``running`` has these ends by sequence, oldest first.
    """

    lengths: list[float]
    slots: int
    prompt: float
    kv_tokens: float
    chunk_steps: int
    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, float] = field(default_factory=dict)
    recomputed: float = 0.0
    log: list[tuple[float, float, float]] = field(default_factory=list)

    def run(self) -> RolloutProfile:
        self.done = [0.0] * len(self.lengths)
        self.ends: list[tuple[float, int]] = []  # a heap; what was evicted is still in it
        self.now, self.decoded = 0.0, 0.0  # steps so far, and tokens that the running ones have decoded
        self.waiting.extend(range(len(self.lengths)))
        peak = 0.0
        while self.waiting or self.running:
            self._admit()
            steps = self._steps()
            active, held = len(self.running), self._held()
            self.log.append((steps, active, held + active * steps / 2.0))
            self.now += steps
            self.decoded += active * steps
            peak = max(peak, held + active * steps)
            while self.running and self._next_end() <= self.now:
                ended = heapq.heappop(self.ends)[1]
                self.decoded -= self.lengths[ended]
                del self.running[ended]
        return self._profile(peak)

    def _held(self) -> float:
        return len(self.running) * self.prompt + self.decoded

    def _next_end(self) -> float:
        """When the first running sequence ends: one that was evicted runs again with a later end, or not at all."""
        while True:
            ends, i = self.ends[0]
            if self.running.get(i) == ends:
                return ends
            heapq.heappop(self.ends)

    def _admit(self) -> None:
        """Oldest first, while there is a slot and room for the sequence and one more step of all that run."""
        held = self._held()
        while self.waiting and len(self.running) < self.slots:
            i = self.waiting[0]
            need = self.prompt + self.done[i]
            if held + need + len(self.running) + 1 > self.kv_tokens:
                return
            self.running[self.waiting.popleft()] = ends = self.now + self.lengths[i] - self.done[i]
            heapq.heappush(self.ends, (ends, i))
            self.decoded += self.done[i]
            self.recomputed += need if self.done[i] > 0 else 0.0
            held += need

    def _steps(self) -> float:
        """Steps until a sequence ends or the cache is full; evicts the newest ones if not one step fits."""
        while self._held() + len(self.running) > self.kv_tokens:
            i, ends = self.running.popitem()
            self.done[i] = self.lengths[i] - (ends - self.now)
            self.decoded -= self.done[i]
            self.waiting.appendleft(i)
        room = (self.kv_tokens - self._held()) // len(self.running)
        return max(1.0, min(self._next_end() - self.now, room, float(self.chunk_steps)))

    def _profile(self, peak: float) -> RolloutProfile:
        steps, active, tokens = np.asarray(self.log).T
        edges = np.linspace(0.0, steps.sum(), NUM_SEGMENTS + 1)[:-1]
        first = np.unique(np.searchsorted(np.cumsum(steps) - steps, edges))
        first = first[first < len(steps)]
        width = np.add.reduceat(steps, first)
        sequence_steps = np.add.reduceat(steps * active, first)
        held = np.add.reduceat(steps * tokens, first)
        return RolloutProfile(width, sequence_steps / width, held / sequence_steps, peak, self.recomputed)
