"""What an engine runs and what waits for it: room in the cache, prompts that are begun, sequences that decode.

Sums are kept such that a decode step leaves them as they are: only who comes and who leaves is counted. When the cache
is full the newest request gives its part back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop
from typing import TYPE_CHECKING

from simulator.serving.requests import LEFT, WAITS

if TYPE_CHECKING:
    from simulator.serving.requests import Clock, Request


@dataclass(eq=False, slots=True)
class Sequences:
    """Requests and their sums.

    Parameters
    ----------
    kv_tokens, each
        Tokens that the cache holds, and what a running sequence takes of them beside its own tokens.
    ticks, admitted, evictions
        Steps with decodes, requests admitted, and requests evicted, so far.
    decoding, read, until
        Requests that decode; the tokens that they would read at tick 0 (each reads one more every tick); and the sum of
        the ticks at which they end.
    begun
        Cache tokens given to requests whose prompts are begun.
    waiting, partial, newest, ends
        Requests that wait, first in line first; those whose prompts are begun; all admitted, oldest first, with some
        that have left; and the heap of ``(tick, order, request)`` at which decoding ones end, with some that were
        evicted since, but not first. ``order`` is that of admission.
    """

    kv_tokens: int
    each: int
    ticks: int = 0
    admitted: int = 0
    evictions: int = 0
    decoding: int = 0
    read: int = 0
    until: int = 0
    begun: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    partial: list[Request] = field(default_factory=list)
    newest: list[Request] = field(default_factory=list)
    ends: list[tuple[int, int, Request]] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Cache tokens that are not given away."""
        return self.kv_tokens - self.begun - self.read - self.decoding * (self.ticks + self.each)

    @property
    def to_come(self) -> int:
        """Response tokens that the admitted still have to make."""
        begun = sum([request.whole - request.size for request in self.partial]) if self.partial else 0
        return begun + self.until - self.decoding * self.ticks

    def begin(self, request: Request, new: int) -> None:
        """So many tokens of its prompt are computed; it keeps room for all of them."""
        request.cached = new
        self.partial.append(request)
        self.begun += request.size + self.each

    def completed(self, request: Request) -> None:
        """The last tokens of its prompt are computed."""
        self.partial.remove(request)
        self.begun -= request.size + self.each
        request.cached = 0

    def decode_on(self, clock: Clock, room: int, over: bool) -> None:
        """Decode until a sequence ends or the cache is full, or ``over`` a full cache: no arrival, no clock."""
        room = room if room >= self.decoding else self.make_room()
        ends, decoding, ticks = self.ends, self.decoding, self.ticks
        stretches: list[int] = []
        while True:
            steps = ends[0][0] - ticks
            if steps * decoding > room:
                steps = room // decoding
            stretches += (decoding, self.read + decoding * ticks, steps)
            self.ticks = ticks = ticks + steps
            if ends[0][0] <= ticks or self.partial or not over:
                clock.later(stretches)
                return
            room -= steps * decoding
            while room < decoding:
                room += self.evict()
                decoding = self.decoding

    def make_room(self) -> int:
        """Evict the newest requests until the next decode step fits; the room that there is then."""
        room = self.room
        while room < self.decoding:
            room += self.evict()
        return room

    def evict(self) -> int:
        """The newest request gives its cache back, so many tokens, and is first in line to be computed again."""
        newest = self.newest
        request = newest.pop()
        while request.end == LEFT:
            request = newest.pop()
        end = request.end
        if end == WAITS:
            self.completed(request)
            held = request.size + self.each
        else:
            request.size, request.end = request.whole + self.ticks - end, WAITS
            held = request.size - 1 + self.each
            self.decoding -= 1
            self.read -= request.whole - 1 - end
            self.until -= end
            self.drop()
        self.waiting.appendleft(request)
        self.evictions += 1
        return held

    def drop(self) -> None:
        """Those that were evicted are not first of those that end."""
        ends = self.ends
        while ends and ends[0][2].end != ends[0][0]:
            heappop(ends)
