"""Requests that are all alike, each sent as soon as another ends: what an engine does with them is a queue.

Who came first is first in line, first in the cache and last to be evicted, so that no younger request is ever ahead of
it. Those that run end in the order in which they came: one that runs is no more than the tick at which it ends, one
that was evicted no more than the tokens that it has made. Nothing depends on the time either, so all steps are priced
last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Ints
    from simulator.serving.requests import Clock
    from simulator.serving.run import Chunk, Load, Scheduler


def is_queue(scheduler: Scheduler, load: Load) -> bool:
    """Whether ``Queue`` can run it: a prompt is cut only where a step ends, and nothing takes time but steps."""
    alike = load.shortest_share == 1.0 and scheduler.copies == 1 and scheduler.mixes
    return alike and load.front_end_s == 0.0 and load.front_end_s_per_prompt_token == 0.0


@dataclass(eq=False, slots=True)
class Queue:
    """An engine, the requests inside it, and those in line.

    Parameters
    ----------
    ticks, evictions, unsent, ended
        Steps with decodes and requests evicted so far, requests yet to be sent, and ended.
    running, decoding, until
        ``(tick, count)`` at which those that decode end, oldest first; how many there are; the sum of their ticks.
    begun, cached
        Tokens of the prompt that is begun, and of them those that are computed. It is the youngest inside.
    evicted
        Response tokens that each evicted request has made, first in line last.
    fresh, coming
        Requests in line behind these, and those sent that are not seen yet.
    sent, first, last
        ``(turn, count)`` of the clock at which requests were sent, had their first token, and their last.
    """

    scheduler: Scheduler
    load: Load
    clock: Clock
    ticks: int = 0
    evictions: int = 0
    unsent: int = 0
    ended: int = 0
    decoding: int = 0
    until: int = 0
    begun: int = 0
    cached: int = 0
    fresh: int = 0
    coming: int = 0
    running: deque[tuple[int, int]] = field(default_factory=deque)
    evicted: list[int] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    first: list[tuple[int, int]] = field(default_factory=list)
    last: list[tuple[int, int]] = field(default_factory=list)

    @property
    def done(self) -> Ints:
        """Turns at which requests were sent, began and ended, their response and count, shape ``[requests, 5]``."""
        turns = [np.repeat(*np.asarray(each).T) for each in (self.sent, self.first, self.last)]
        alike = np.ones_like(turns[0])
        return np.stack([*turns, alike * self.load.output_tokens, alike], axis=1)

    @property
    def context(self) -> int:
        """Tokens that the next decode step reads."""
        return self.decoding * (self.load.input_tokens + self.load.output_tokens - 1 + self.ticks) - self.until

    @property
    def room(self) -> int:
        """Cache tokens that are not given away; a prompt that is begun keeps room for all of it."""
        each = self.scheduler.tokens_of_a_sequence
        begun = self.begun + each if self.begun else 0
        return self.scheduler.kv_tokens - begun - self.context - self.decoding * each

    @property
    def to_come(self) -> int:
        """Response tokens that those inside still have to make."""
        begun = self.load.input_tokens + self.load.output_tokens - self.begun if self.begun else 0
        return begun + self.until - self.decoding * self.ticks

    def run(self) -> None:
        load, running, evicted = self.load, self.running, self.evicted
        prompt, each = load.input_tokens, self.scheduler.tokens_of_a_sequence
        self.unsent = load.num_requests
        self.fresh = self._send(load.concurrency)
        while self.ended < load.num_requests:
            room, size = self.room, prompt + evicted[-1] if evicted else prompt
            # Planning costs more than to see that the cache does not hold the first in line.
            fits = size + each <= room and (evicted or self.fresh)
            if room < self.decoding or not ((fits or self.begun) and self._prefill(room)):
                self._decode(room)
            self.fresh += self.coming
            self.coming = 0
            if running and running[0][0] <= self.ticks:
                self._finish()

    def _send(self, count: int) -> int:
        """The client sends so many more requests, or all that are left; how many these are."""
        count = min(count, self.unsent)
        if count:
            self.sent.append((self.clock.turn, count))
            self.unsent -= count
        return count

    def _finish(self) -> None:
        """Those that have all of their response leave, and the client sends as many more."""
        running, before = self.running, self.ended
        while running and running[0][0] <= self.ticks:
            end, count = running.popleft()
            self.ended += count
            self.until -= count * end
        count = self.ended - before
        self.decoding -= count
        self.last.append((self.clock.turn, count))
        count = self._send(count)
        if self.scheduler.plans_ahead:
            self.coming = count
        else:
            self.fresh += count

    def _decode(self, room: int) -> None:
        """Decode until a request ends, however often the cache is full: the youngest leaves and is first in line.

        Those that are on their way are seen after a step.
        """
        running, evicted, decoding, until, ticks = self.running, self.evicted, self.decoding, self.until, self.ticks
        prompt, response, each = self.load.input_tokens, self.load.output_tokens, self.scheduler.tokens_of_a_sequence
        span, before, later, coming = prompt + response - 1, len(evicted), self.clock.later, self.coming
        while running:
            while room < decoding:
                made = self.begun - prompt
                if self.begun:
                    self.begun = 0
                    room += 1
                else:
                    end, count = running.pop()
                    if count > 1:
                        running.append((end, count - 1))
                    made = response - end + ticks
                    until -= end
                    decoding -= 1
                evicted.append(made)
                room += prompt + made - 1 + each
            steps = running[0][0] - ticks
            if steps * decoding > room:
                steps = room // decoding
            if coming and not evicted and not self.fresh:
                steps = 1
            later(decoding, decoding * (span + ticks) - until, steps)
            ticks += steps
            if coming or running[0][0] == ticks:
                break
            room -= steps * decoding
        self.evictions += len(evicted) - before
        self.decoding, self.until, self.ticks = decoding, until, ticks

    def _prefill(self, room: int) -> bool:
        """One step with as much of prompts as it takes, the one that is begun first; whether it takes any.

        Prompts that it completes give a token at its end.
        """
        beside, context, begun = self.decoding, self.context, self.begun
        budget, cut = self.scheduler.token_budget - beside, (0, 0)
        chunks: list[Chunk] = []
        started: list[tuple[int, int]] = []
        if begun and budget > 0:
            chunks.append((min(begun - self.cached, budget), self.cached))
            self.cached += chunks[0][0]
            budget -= chunks[0][0]
            if self.cached == begun:
                started.append((begun - self.load.input_tokens, 1))
        if budget > 0:
            cut = self._admit(budget, room, chunks, started)
        if not chunks:
            return False
        if not begun or self.cached == begun:
            self.begun, self.cached = cut
        self.clock.mixed_later(beside, context, chunks, beside + sum([count for _, count in started]))
        self.ticks += beside > 0
        self._start(started)
        return True

    def _start(self, started: list[tuple[int, int]]) -> None:
        """Their prompts are computed: each request has one more token and decodes from now on."""
        ends, running = self.ticks - 1 + self.load.output_tokens, self.running
        for made, count in started:
            if not made:
                self.first.append((self.clock.turn, count))
            end = ends - made
            running.append((end, count))
            self.decoding += count
            self.until += count * end

    # Long by the rules of all engines, each a line or two, and as thousands of requests come in here.
    def _admit(self, budget: int, free: int, chunks: list[Chunk], started: list[tuple[int, int]]) -> tuple[int, int]:
        """Those that come in with this step, first in line first; the prompt that it cuts, and tokens that it takes of it."""
        rules, load, beside, evicted, fresh = self.scheduler, self.load, self.decoding, self.evicted, self.fresh
        own, keeps, response, need = rules.admits_with_output, rules.keeps_for_running, 0.0, float(beside)
        kept = keeps * self.to_come if keeps else 0.0  # before this step's admissions, whose own share comes on top
        slots = rules.max_num_seqs - beside - (self.begun > 0)
        prompt, whole, each = load.input_tokens, load.output_tokens, rules.tokens_of_a_sequence
        cut = 0, 0
        while budget > 0 and slots > 0 and (evicted or fresh):
            made, count = evicted[-1] if evicted else 0, 1
            new = size = prompt + made
            taken = size + each
            if own or keeps:
                response = own * (whole - made)
                need = max(kept + response, beside)
            if taken + need > free:
                break
            if size > budget:
                if not rules.chunked and (beside or chunks):
                    break
                new = budget if rules.chunked else size
            elif not evicted and fresh > 1:
                fit = min((free - beside) // taken, int((free - kept) / (taken + response)))
                count = max(min(budget // size, fresh, slots, fit), 1)
            if evicted:
                evicted.pop()
            else:
                fresh -= count
            if new == size:
                started.append((made, count))
            else:
                cut = size, new
            chunks += ((new, 0),) * count
            kept += response * count
            budget -= new * count
            free -= taken * count
            slots -= count
        self.fresh = fresh
        return cut
