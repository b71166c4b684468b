"""What an engine runs and what waits for it: room in the cache, prompts that are begun, sequences that decode.

Sums are kept such that a decode step leaves them as they are: only who comes and who leaves is counted. When the cache
is full the newest request gives its part back; runs of hundreds of requests on a small cache do so ten thousand times,
hence few calls and no copies here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from simulator.serving.requests import LEFT, WAITS

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
        Steps with decodes, groups admitted, and requests evicted, so far.
    decoding, read, until
        Requests that decode; the tokens that they would read at tick 0 (each reads one more every tick); and the sum of
        the ticks at which they end.
    begun
        Cache tokens given to requests whose prompts are begun.
    waiting, partial, newest, ends
        Groups that wait, first in line first; requests whose prompts are begun; all admitted, oldest first, with some
        that have left; and the heap of ``(tick, order, group)`` at which decoding ones end, with some that were
        evicted since, but not first.
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
    waiting: deque[Group] = field(default_factory=deque)
    partial: list[Group] = field(default_factory=list)
    newest: list[Group] = field(default_factory=list)
    ends: list[tuple[int, int, Group]] = field(default_factory=list)

    @property
    def context(self) -> int:
        """Tokens that the next decode step reads."""
        return self.read + self.decoding * self.ticks

    @property
    def room(self) -> int:
        """Cache tokens that are not given away."""
        return self.kv_tokens - self.begun - self.read - self.decoding * (self.ticks + self.each)

    @property
    def to_come(self) -> int:
        """Response tokens that the admitted still have to make."""
        begun = sum([group.response - group.made for group in self.partial])
        return begun + self.until - self.decoding * self.ticks

    def begin(self, group: Group, new: int) -> None:
        """So many tokens of its prompt are computed, of one request; it keeps room for all of them."""
        group.cached = new
        self.partial.append(group)
        self.begun += group.prompt + group.made + self.each

    def start(self, completed: list[Group], turn: int) -> None:
        """Their prompts are computed: each request has one more token and decodes from now on."""
        ticks, ends = self.ticks, self.ends
        for group in completed:
            count, made = group.count, group.made + 1
            if group.cached:
                self.partial.remove(group)
                self.begun -= group.prompt + made - 1 + self.each
                group.cached = 0
            group.made = made
            group.end = end = ticks - made + group.response
            group.read = read = group.prompt + made - 1 - ticks
            if group.first < 0:
                group.first = turn
            self.decoding += count
            self.read += count * read
            self.until += count * end
            heappush(ends, (end, group.order, group))

    def decode_on(self, clock: Clock, room: int, over: bool) -> None:
        """Decode until a sequence ends or the cache is full, or ``over`` a full cache: no arrival, no clock."""
        room = room if room >= self.decoding else self.make_room()
        ends, decoding, ticks, stretches = self.ends, self.decoding, self.ticks, list[int]()
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

    def decode_steps(self, room: int) -> int:
        """Steps until a sequence ends or the cache is full; what does not fit the next one is evicted first."""
        if room < self.decoding:
            room = self.make_room()
        steps = self.ends[0][0] - self.ticks
        return steps if steps * self.decoding <= room else room // self.decoding

    def make_room(self) -> int:
        """Evict the newest requests until the next decode step fits; the room that there is then."""
        room = self.room
        while room < self.decoding:
            room += self.evict()
        return room

    def evict(self) -> int:
        """The newest request gives its cache back, so many tokens, and is first in line to be computed again."""
        newest = self.newest
        group = newest.pop()
        while group.end == LEFT:
            group = newest.pop()
        if group.count > 1:
            newest.append(group)
            group = group.split(1)
        end = group.end
        if end == WAITS:
            self.partial.remove(group)
            held = group.prompt + group.made + self.each
            self.begun -= held
            group.cached = 0
        else:
            held = group.read + self.ticks + self.each
            group.made, group.end = group.response - end + self.ticks, WAITS
            self.decoding -= 1
            self.read -= group.read
            self.until -= end
            if self.ends[0][2] is group:
                self.ended()
        self.waiting.appendleft(group)
        self.evictions += 1
        return held

    def ended(self) -> list[Group]:
        """Groups that have all of their response: they leave, and the next one of ``ends`` is not one evicted."""
        ends, ticks, done = self.ends, self.ticks, []
        while ends:
            end, _, group = ends[0]
            if group.end == end:
                if end > ticks:
                    break
                count, group.end = group.count, LEFT
                self.decoding -= count
                self.read -= count * group.read
                self.until -= count * end
                done.append(group)
            heappop(ends)
        return done
