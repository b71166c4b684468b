"""What an engine runs and what waits for it: room in the cache, prompts that are begun, sequences that decode.

Counts are kept as sums, so that nothing is counted anew in a step. When the cache is full the newest request gives its
part back; runs of hundreds of requests on a small cache do so ten thousand times, hence few calls and no copies here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.serving.requests import Clock, Group


@dataclass(eq=False, slots=True)
class Sequences:
    """Groups of requests and their sums.

    Parameters
    ----------
    kv_tokens, each
        Tokens that the cache holds, and what a running sequence takes of them beside its own tokens.
    ticks, admitted, evictions
        Steps with decodes, requests admitted, and evicted, so far.
    held, filling, decoding, context, to_come
        Cache tokens given away; requests whose prompts are begun; requests that decode, and tokens that they read;
        response tokens that the admitted still have to make.
    waiting, partial, newest, ends
        Groups that wait, first in line first; whose prompts are begun; all admitted, oldest first, with some that have
        left; and the heap of ``(tick, order, group)`` at which decoding ones end, with some that were evicted since.
    """

    kv_tokens: int
    each: int
    ticks: int = 0
    admitted: int = 0
    evictions: int = 0
    held: int = 0
    filling: int = 0
    decoding: int = 0
    context: int = 0
    to_come: int = 0
    waiting: deque[Group] = field(default_factory=deque)
    partial: list[Group] = field(default_factory=list)
    newest: list[Group] = field(default_factory=list)
    ends: list[tuple[int, int, Group]] = field(default_factory=list)

    def may_admit(self, beside: int = 0) -> bool:
        """Whether the cache holds the first that waits and so much beside; planning sees what else it needs."""
        if not self.waiting:
            return False
        first = self.waiting[0]
        return self.held + beside + first.prompt + first.made + self.each <= self.kv_tokens  # nothing of it is cached

    def begin(self, plan: list[tuple[Group, int]]) -> None:
        """Admit the groups of ``plan``: they have room for their prompts from now on."""
        order = self.admitted
        for group, _ in plan:
            count = group.count
            group.order, group.state = order, "prefill"
            order += count
            self.held += count * (group.prompt + group.made + self.each)
            self.to_come += count * (group.response - group.made)
            self.partial.append(group)
            self.newest.append(group)
        self.filling += order - self.admitted
        self.admitted = order

    def start(self, completed: list[Group], turn: int) -> None:
        """Their prompts are computed: each request has one more token and decodes from now on."""
        ticks, ends, started = self.ticks, self.ends, 0
        for group in completed:
            count, made = group.count, group.made + 1
            group.made, group.base, group.state = made, ticks - made, "decode"
            if group.first < 0:
                group.first = turn
            started += count
            self.context += group.cached * count
            heappush(ends, (ticks - made + group.response, group.order, group))
        self.filling -= started
        self.decoding += started
        self.to_come -= started
        # Chunks that are left are of the groups begun last, so mostly none is.
        self.partial = [group for group in self.partial if group.state == "prefill"] if self.filling else []

    def advance(self, steps: int) -> None:
        """So many decode steps."""
        grown = steps * self.decoding
        self.ticks += steps
        self.context += grown
        self.held += grown
        self.to_come -= grown

    def decode_on(self, clock: Clock, evicted: bool) -> None:
        """Decode, past a full cache too, until a sequence ends or one that waits may come in: no arrival, no clock."""
        waiting, each, kv_tokens = self.waiting, self.each, self.kv_tokens
        while True:
            steps, decoding = self.decode_steps(evicted), self.decoding
            clock.later(decoding, self.context, steps)
            grown = steps * decoding
            held, ticks = self.held + grown, self.ticks + steps
            self.held, self.ticks = held, ticks
            self.context += grown
            self.to_come -= grown
            if self.ends[0][0] <= ticks or self.partial:
                return
            if waiting and held + waiting[0].prompt + waiting[0].made + each <= kv_tokens:
                return
            evicted = held + decoding > kv_tokens and self.make_room()
            if not self.decoding:
                return

    def decode_steps(self, evicted: bool) -> int:
        """Steps until a sequence ends or the cache is full."""
        room = self.kv_tokens - self.held
        if self.decoding > room:
            evicted = self.make_room() or evicted
            room = self.kv_tokens - self.held
        ends = self.ends
        while ends[0][2].order != ends[0][1] or ends[0][2].state != "decode":  # evicted since: a new base, or none
            heappop(ends)
        if evicted and self.may_admit(self.decoding):
            return 1  # what was evicted comes back in the next step
        steps, fit = ends[0][0] - self.ticks, room // self.decoding
        return steps if steps < fit else fit

    def make_room(self) -> bool:
        """Evict the newest requests until the next decode step fits; whether any was evicted."""
        before, newest, kv_tokens = self.evictions, self.newest, self.kv_tokens
        while self.decoding and self.held + self.decoding > kv_tokens:
            group = newest[-1]
            if group.state == "done" or group.state == "waiting":
                newest.pop()
                continue
            if group.count > 1:
                group = group.split(1)
            else:
                newest.pop()
            if group.state == "decode":
                self.leave(group)
            else:
                self._stop(group)
            group.state, group.cached = "waiting", 0
            self.waiting.appendleft(group)  # first in line, to be computed again
            self.evictions += 1
        return self.evictions > before

    def _stop(self, group: Group) -> None:
        """A prompt that is begun gives its cache back."""
        self.partial.remove(group)
        self.filling -= 1
        self.held -= group.prompt + group.made + self.each
        self.to_come -= group.response - group.made

    def leave(self, group: Group) -> None:
        """Give the cache of a decoding group back."""
        count, made = group.count, self.ticks - group.base
        group.made = made
        length = group.prompt + made - 1
        self.decoding -= count
        self.context -= count * length
        self.held -= count * (length + self.each)
        self.to_come -= count * (group.response - made)

    def ended(self) -> list[Group]:
        """Groups that have all of their response: they leave."""
        ends, ticks = self.ends, self.ticks
        done: list[Group] = []
        while ends and ends[0][0] <= ticks:
            _, order, group = heappop(ends)
            if group.order == order and group.state == "decode":
                self.leave(group)
                group.state = "done"
                done.append(group)
        while done and self.newest and self.newest[-1].state in ("done", "waiting"):
            self.newest.pop()
        return done
