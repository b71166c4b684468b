"""Requests that are all alike, each sent as soon as another ends: what an engine does with them is a queue.

Who came first is first in line, first in the cache and last to be evicted, so that no younger request is ever ahead of
it. Those that run end in the order in which they came: one that runs is no more than the tick at which it ends, one
that was evicted no more than the tokens that it has made. Nothing depends on the time either, so all steps are priced
last. Runs of two thousand requests on a small cache evict ten thousand times, hence few calls here.
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
    """Whether ``Queue`` can run it: nobody waits but for steps, and one prompt at most is begun after each."""
    alike = load.shortest_share == 1.0 and scheduler.copies == 1 and scheduler.mixes
    return alike and load.front_end_s == 0.0 and load.front_end_s_per_prompt_token == 0.0


@dataclass(eq=False, slots=True)
class Queue:
    """An engine, the requests inside it, and those in line.

    Parameters
    ----------
    ticks, evictions, unsent, ended
        Steps with decodes and requests evicted so far, requests yet to be sent, and ended.
    running, until
        Ticks at which those that decode end, oldest first, and their sum.
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
        turns = [np.repeat(*np.asarray(each).T) for each in (self.sent, self.first, self.last)]
        alike = np.ones_like(turns[0])
        return np.stack([*turns, alike * self.load.output_tokens, alike], axis=1)

    @property
    def context(self) -> int:
        """Tokens that the next decode step reads."""
        return len(self.running) * (self.load.input_tokens + self.load.output_tokens - 1 + self.ticks) - self.until

    @property
    def to_come(self) -> int:
        """Response tokens that those inside still have to make."""
        begun = self.load.input_tokens + self.load.output_tokens - self.begun if self.begun else 0
        return begun + self.until - len(self.running) * self.ticks

    def run(self) -> None:
        rules, load, running, evicted = self.scheduler, self.load, self.running, self.evicted
        prompt, each = load.input_tokens, rules.tokens_of_a_sequence
        self.unsent = load.num_requests
        self.fresh = self._send(load.concurrency)
        while self.ended < load.num_requests:
            context, active = self.context, len(running)
            room = rules.kv_tokens - context - active * each - (self.begun + each if self.begun else 0)
            # Planning costs more than to see that the cache does not hold the first in line.
            needed = prompt + each + (evicted[-1] if evicted else 0)
            fits = needed + active <= room and (evicted or self.fresh)
            if room < active or not ((fits or self.begun) and self._prefill(context, room)):
                self._decode(room)
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
        running, ticks, count = self.running, self.ticks, 0
        while running and running[0] == ticks:
            running.popleft()
            count += 1
        self.ended += count
        self.until -= count * ticks
        self.last.append((self.clock.turn, count))
        sent = self._send(count)
        if self.scheduler.plans_ahead:
            self.coming = sent
        else:
            self.fresh += sent

    # Long, as ten thousands of evictions go through here.
    def _decode(self, room: int) -> None:
        """Decode until a request ends. Whenever the cache is full the youngest leaves it, and is first in line."""
        running, evicted, coming, until, ticks = self.running, self.evicted, self.coming, self.until, self.ticks
        prompt, response, each = self.load.input_tokens, self.load.output_tokens, self.scheduler.tokens_of_a_sequence
        span, active, before, later = prompt + response - 1, len(running), len(evicted), self.clock.later
        if self.begun and room < active:
            evicted.append(self.begun - prompt)
            room += self.begun + each
            self.begun = 0
        while active:
            while room < active:
                end = running.pop()
                made = response - end + ticks
                evicted.append(made)
                room += prompt + made - 1 + each
                until -= end
                active -= 1
            steps = running[0] - ticks
            if steps * active > room:
                steps = room // active
            if coming and not evicted and not self.fresh:  # these are seen after a step
                steps = 1
            later(active, active * (span + ticks) - until, steps)
            ticks += steps
            if coming or self.begun or running[0] == ticks:
                break
            room -= steps * active
        self.evictions += len(evicted) - before
        self.until, self.ticks = until, ticks

    def _prefill(self, context: int, room: int) -> bool:
        """One step with as much of prompts as it takes, the one that is begun first; whether it takes any."""
        beside, prompt, begun = len(self.running), self.load.input_tokens, self.begun
        budget = self.scheduler.token_budget - beside
        if budget <= 0:
            return False
        chunks: list[Chunk] = []
        whole: list[int] = []
        if begun:
            new = min(begun - self.cached, budget)
            chunks.append((new, self.cached))
            budget -= new
            self.cached += new
            if self.cached == begun:
                whole.append(begun - prompt)
        came, size, new = self._admit(budget, room) if budget else ([], 0, 0)
        chunks += [(prompt + made, 0) for made in came]
        if size:
            chunks.append((new, 0))
        if not begun or whole:
            self.begun, self.cached = size, new
        if chunks:
            whole += came
            self.clock.mixed_later(beside, context, chunks, beside + len(whole))
            self._start(whole)
        return bool(chunks)

    def _start(self, whole: list[int]) -> None:
        """Prompts of those that have made so many tokens are computed: each has one more and decodes from now on."""
        self.ticks += bool(self.running)
        ends = self.ticks - 1 + self.load.output_tokens
        self.running.extend([ends - made for made in whole])
        self.until += ends * len(whole) - sum(whole)
        fresh = whole.count(0)
        if fresh:
            self.first.append((self.clock.turn, fresh))

    # Long by the rules of all engines, each a line, and as ten thousands of requests come in here.
    def _admit(self, budget: int, room: int) -> tuple[list[int], int, int]:
        """What those have made who come in with this step; of a prompt that it cuts the size and what it takes of it."""
        rules, evicted, prompt, response = self.scheduler, self.evicted, self.load.input_tokens, self.load.output_tokens
        own, each, beside, count, cut = rules.admits_with_output, rules.tokens_of_a_sequence, len(self.running), 0, 0
        spare = room - rules.keeps_for_running * self.to_come  # before this step's admissions, whose own share is added
        room -= beside
        slots = rules.max_num_seqs - beside - (self.begun > 0)
        for made in reversed(evicted):
            size = prompt + made
            taken = size + each
            kept = taken + own * (response - made)
            if taken > room or kept > spare or count == slots:
                break
            if size > budget:
                cut = size
                break
            budget -= size
            room -= taken
            spare -= kept
            count += 1
        came = evicted[: -count - 1 : -1]
        del evicted[len(evicted) - count :]
        if not evicted and not cut:
            taken = prompt + each
            fit = max(0, min(room // taken, int(spare // (taken + own * response)), slots - count, self.fresh))
            whole = min(fit, budget // prompt)
            came += [0] * whole
            budget -= whole * prompt
            cut = prompt if whole < fit else 0
            self.fresh -= whole
        return self._next(came, cut, budget) if cut else (came, 0, 0)

    def _next(self, came: list[int], size: int, budget: int) -> tuple[list[int], int, int]:
        """As ``_admit``, where the next in line has a longer prompt than the step still takes.

        It is cut, or comes in alone.
        """
        chunked = self.scheduler.chunked
        if not (budget if chunked else not self.running and not came):
            return came, 0, 0
        if self.evicted:
            self.evicted.pop()
        else:
            self.fresh -= 1
        return (came, size, budget) if chunked else ([size - self.load.input_tokens], 0, 0)
