"""Requests that are all alike, each sent as soon as another ends: what an engine does with them is a queue.

Who came first is first in line, first in the cache and last to be evicted, so that no younger request is ever ahead of
it. Those that run end in the order in which they came: one that runs is no more than the tick at which it ends, one
that was evicted no more than the tokens that are left of it. Nothing depends on the time either, so all steps are
priced last. Runs of two thousand requests on a small cache evict ten thousand times, hence few calls here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Ints
    from simulator.serving.requests import Clock
    from simulator.serving.run import Chunk, Load, Scheduler


def is_queue(scheduler: Scheduler, load: Load) -> bool:
    """Whether ``Queue`` can run it: nobody waits but for steps, and one prompt at most is begun after each."""
    alike = load.shortest_share == 1.0 and scheduler.copies == 1 and scheduler.mixes
    return alike and load.front_end_s == 0.0 and load.front_end_s_per_prompt_token == 0.0


@dataclass(eq=False, slots=True)
class Queue:
    """An engine, the requests inside it, and those in line.

    Parameters
    ----------
    ticks, evictions, unsent, started, ended
        Steps with decodes and requests evicted so far, requests yet to be sent, that had a first token, and that ended.
    running, until
        Ticks at which those that decode end, oldest first, and their sum.
    begun, cached
        Tokens of the prompt that is begun, and of them those that are computed. It is the youngest inside.
    evicted
        Response tokens that each evicted request still has to make, first in line last.
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
    started: int = 0
    ended: int = 0
    until: int = 0
    begun: int = 0
    cached: int = 0
    fresh: int = 0
    coming: int = 0
    running: deque[int] = field(default_factory=deque)
    evicted: list[int] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    first: list[tuple[int, int]] = field(default_factory=list)
    last: list[tuple[int, int]] = field(default_factory=list)

    @property
    def done(self) -> Ints:
        """Turns at which requests were sent, began and ended, their response and count, shape ``[requests, 5]``."""
        flat = [np.fromiter(chain.from_iterable(each), np.int64) for each in (self.sent, self.first, self.last)]
        turns = [np.repeat(each[::2], each[1::2]) for each in flat]
        alike = np.ones_like(turns[0])
        return np.stack([*turns, alike * self.load.output_tokens, alike], axis=1)

    # Long, as each call here counts.
    def run(self) -> None:
        rules, load, running, evicted = self.scheduler, self.load, self.running, self.evicted
        each, whole = rules.tokens_of_a_sequence, load.input_tokens + load.output_tokens
        self.unsent = load.num_requests
        self.fresh = self._send(load.concurrency)
        while self.ended < load.num_requests:
            active = len(running)
            room = rules.kv_tokens - active * (whole - 1 + each + self.ticks) + self.until
            if self.begun:
                room -= self.begun + each
            # Planning costs more than to see that the cache does not hold the first in line.
            ahead = whole - evicted[-1] if evicted else load.input_tokens
            fits = ahead + each + active <= room and (evicted or self.fresh)
            if room < active or not ((fits or self.begun) and self._prefill(room)):
                self._decode(room)
            if self.coming:
                self.fresh += self.coming
                self.coming = 0
            if running and running[0] == self.ticks:
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
        running, ticks, before = self.running, self.ticks, len(self.running)
        while running and running[0] == ticks:
            running.popleft()
        count = before - len(running)
        self.ended += count
        self.until -= count * ticks
        self.last.append((self.clock.turn, count))
        if self.unsent:
            sent = self._send(count)
            if self.scheduler.plans_ahead:
                self.coming = sent
            else:
                self.fresh += sent

    # Long, as ten thousands of evictions go through here.
    def _decode(self, room: int) -> None:
        """Decode until a request ends. Whenever the cache is full the youngest leaves it, and is first in line."""
        running, evicted, coming, until, ticks = self.running, self.evicted, self.coming, self.until, self.ticks
        span, each = self.load.input_tokens + self.load.output_tokens - 1, self.scheduler.tokens_of_a_sequence
        active, before, held, stretches = len(running), len(evicted), span + each, list[int]()
        if self.begun and room < active:
            evicted.append(span + 1 - self.begun)
            room += self.begun + each
            self.begun = 0
        while active:
            while room < active:
                end = running.pop()
                left = end - ticks
                evicted.append(left)
                room += held - left
                until -= end
                active -= 1
            steps = running[0] - ticks
            if steps * active > room:
                steps = room // active
            if coming and not evicted and not self.fresh:  # these are seen after a step
                steps = 1
            stretches += (active, active * (span + ticks) - until, steps)
            ticks += steps
            if coming or self.begun or running[0] == ticks:
                break
            room -= steps * active
        self.clock.later(stretches)
        self.evictions += len(evicted) - before
        self.until, self.ticks = until, ticks

    def _prefill(self, room: int) -> bool:
        """One step with as much of prompts as it takes, the one that is begun first; whether it takes any."""
        rules, running, begun, beside = self.scheduler, self.running, self.begun, len(self.running)
        budget, whole = rules.token_budget - beside, self.load.input_tokens + self.load.output_tokens
        if budget <= 0:
            return False
        context, after = beside * (whole - 1 + self.ticks) - self.until, self.ticks + (beside > 0)
        to_come = self.until - beside * self.ticks + (whole - begun if begun else 0)
        spare = room - rules.keeps_for_running * to_come
        chunks: list[Chunk] = []
        if begun:
            new = min(begun - self.cached, budget)
            chunks.append((new, self.cached))
            budget -= new
            self.cached += new
            if self.cached == begun:
                self._start(after - 1 + whole - begun, 1)
                self.begun = 0
        if budget:
            self._admit(budget, room - beside, spare, after, chunks)
        if chunks:
            self.clock.mixed_later(beside, context, chunks, len(running))
            self.ticks = after
            reached = self.ended + len(running)
            if reached > self.started:  # those that come back had their first token before
                self.first.append((self.clock.turn, reached - self.started))
                self.started = reached
        return bool(chunks)

    def _start(self, end: int, count: int) -> None:
        """So many decode from now on, and end then."""
        self.running.extend((end,) * count)
        self.until += end * count

    # Long, as ten thousands of requests that were evicted come back here.
    def _admit(self, budget: int, room: int, spare: float, after: int, chunks: list[Chunk]) -> None:
        """Those that come in with this step, first in line first; ``chunks`` get what it takes of their prompts.

        ``room`` and ``spare`` are left for them, beside what decodes take in this step and what they take later on. A
        prompt that the step completes gives a token at its end; the next one is due at the tick ``after``.
        """
        rules, load, running, evicted = self.scheduler, self.load, self.running, self.evicted
        own, each, whole = rules.admits_with_output, rules.tokens_of_a_sequence, load.input_tokens + load.output_tokens
        slots, ends, until, before, cut = rules.max_num_seqs - len(running), after - 1, 0, len(running), 0
        for left in islice(reversed(evicted), max(slots, 0)):
            size = whole - left
            taken = size + each
            kept = taken + own * left
            if taken > room or kept > spare:
                break
            if size > budget:
                cut = size
                break
            budget -= size
            room -= taken
            spare -= kept
            chunks.append((size, 0))
            end = ends + left
            running.append(end)
            until += end
        self.until += until
        del evicted[len(evicted) - len(running) + before :]
        if not evicted:
            budget, cut = self._admit_fresh(budget, room, spare, ends, chunks)
        if cut:
            self._next(cut, budget, ends + whole - cut, chunks)

    def _admit_fresh(self, budget: int, room: int, spare: float, ends: int, chunks: list[Chunk]) -> tuple[int, int]:
        """As ``_admit``, of those that have not been inside: what is left of ``budget``, and the prompt it cuts."""
        prompt, response = self.load.input_tokens, self.load.output_tokens
        taken = prompt + self.scheduler.tokens_of_a_sequence
        kept = taken + self.scheduler.admits_with_output * response
        slots = self.scheduler.max_num_seqs - len(self.running)
        fit = max(0, min(room // taken, int(spare // kept), slots, self.fresh))
        count = min(fit, budget // prompt)
        self._start(ends + response, count)
        self.fresh -= count
        chunks += ((prompt, 0),) * count
        return budget - count * prompt, prompt if count < fit else 0

    def _next(self, size: int, budget: int, end: int, chunks: list[Chunk]) -> None:
        """The next in line has room, and a longer prompt than the step still takes: it is cut, or waits to be alone."""
        chunked = self.scheduler.chunked
        if not (budget if chunked else not self.running and not chunks):
            return
        if self.evicted:
            self.evicted.pop()
        else:
            self.fresh -= 1
        chunks.append((budget if chunked else size, 0))
        if chunked:
            self.begun, self.cached = size, budget
        else:
            self._start(end, 1)
