"""An engine's scheduler, request by request: what waits, what is admitted, what each step computes.

A step takes its price from ``StepPrices``; stretches of steps that only decode are priced in one go, so a run costs as
many turns of the loop as it has steps with a prefill, an arrival or an end. Once all requests have arrived nothing
depends on the time any more, and all steps are priced last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.requests import LEFT, Request

if TYPE_CHECKING:
    from profiles.records import Ints
    from simulator.serving.requests import Clock
    from simulator.serving.run import Load, Scheduler, StepPrices
    from simulator.serving.sequences import Sequences


@dataclass(eq=False, slots=True)
class Loop:
    """The state of a run: requests sent and ended, those on their way to the scheduler, and those ``inside``.

    ``planned`` is when the last step was planned, or ``last`` has the active and the context tokens of that step.
    """

    scheduler: Scheduler
    load: Load
    prices: StepPrices
    lengths: list[tuple[int, int]]
    clock: Clock
    inside: Sequences
    planned: float = 0.0
    last: tuple[int, int] | None = None
    front_free: float = 0.0
    sent: int = 0
    ended: int = 0
    arrivals: deque[tuple[float, Request]] = field(default_factory=deque)
    over: list[int] = field(default_factory=list)

    # Long, as each call here counts.
    def run(self) -> None:
        rules, inside, arrivals, clock = self.scheduler, self.inside, self.arrivals, self.clock
        waiting, ends, partial, each, mixes = inside.waiting, inside.ends, inside.partial, inside.each, rules.mixes
        own, keeps, requests = rules.admits_with_output, rules.keeps_for_running, len(self.lengths)
        self._send(min(self.load.concurrency, requests))
        while self.ended < requests:
            if not waiting and arrivals and arrivals[0][0] <= clock.now:
                self._arrive()
            decoding, ticks, evicted = inside.decoding, inside.ticks, False
            room = inside.kv_tokens - inside.begun - inside.read - decoding * (ticks + each)
            beside = decoding if mixes else 0
            if room < beside:
                evicted, room = True, inside.make_room()
                beside = inside.decoding
            fits = False
            # Planning costs more than to see that the cache does not hold the first in line.
            if waiting and not evicted:
                need = own * (waiting[0].whole - waiting[0].size)
                need = need + keeps * inside.to_come if keeps else need
                fits = waiting[0].size + each + (need if need > beside else beside) <= room
            if (fits or partial) and self._prefill(room if fits else 0, beside):
                pass
            elif inside.decoding:
                self._decode(room)
            else:
                clock.pass_s(arrivals[0][0] - clock.now)
                self.planned, self.last = clock.now, None
            if ends and ends[0][0] <= inside.ticks:
                self._finish()

    @property
    def done(self) -> Ints:
        """Turns at which requests were sent, began and ended, their response and count, shape ``[requests, 5]``."""
        return np.fromiter(self.over, np.int64).reshape(-1, 5)

    @property
    def evictions(self) -> int:
        """Requests evicted so far."""
        return self.inside.evictions

    def _send(self, count: int) -> None:
        """The client sends the next requests; the front end takes each when it is done with those before."""
        load, clock, free = self.load, self.clock, self.front_free
        for prompt, response in self.lengths[self.sent : self.sent + count]:
            free = (free if free > clock.now else clock.now) + load.front_end_s_per_prompt_token * prompt
            request = Request(clock.turn, prompt + response, response, prompt)
            self.arrivals.append((free + load.front_end_s, request))  # no earlier than those before
        self.sent, self.front_free = self.sent + count, free

    def _arrive(self) -> None:
        """Requests that the front end was done with when the last step was planned get in line.

        Who stands behind others makes no difference, so this is asked when the line is empty.
        """
        seen, arrivals = self.clock.now, self.arrivals
        if self.scheduler.plans_ahead:
            if self.last:
                self.planned, self.last = seen - self.prices.stretch_s(*self.last, 1), None
            seen = self.planned
        while arrivals and arrivals[0][0] <= seen:
            self.inside.waiting.append(arrivals.popleft()[1])

    # Long, as thousands of steps go through here.
    def _prefill(self, room: int, beside: int) -> bool:
        """One step with as much of prompts as it takes, those begun first; whether it takes any.

        ``room``: what the cache has for those that wait, 0 if none of them comes in.
        """
        rules, inside, clock = self.scheduler, self.inside, self.clock
        context, kept = inside.read + inside.decoding * inside.ticks if beside else 0, 0.0
        new: list[int] = []
        past: list[int] = []
        completed: list[Request] = []
        budget = rules.token_budget - beside
        if rules.keeps_for_running:  # before this step's admissions, whose own share comes on top
            kept = rules.keeps_for_running * inside.to_come
        for request in inside.partial:
            left = request.size - request.cached
            more = min(left, budget, rules.longest_chunk)
            if more > 0:
                new.append(more)
                past.append(request.cached)
                budget -= more
                request.cached += more
                if more == left:
                    completed.append(request)
        if room and budget > 0:
            self._admit(budget, beside, room, kept, new, completed)
        if not new:
            return False
        self.planned, self.last = clock.now, None
        if self.arrivals or self.sent < len(self.lengths):
            clock.pass_s(self.prices.mixed_step_s(beside, context, new, past, beside + len(completed)))
        else:
            clock.mixed_later(beside, context, new, past, beside + len(completed))
        if beside:
            inside.ticks += 1
        if completed:
            self._start(completed)
        return True

    # Long by the rules of all engines, each a line or two, and as thousands of requests come in here.
    def _admit(
        self, budget: int, beside: int, free: int, kept: float, new: list[int], completed: list[Request]
    ) -> None:
        """Those that come in with this step, first in line first, and as much of their prompts as it takes."""
        rules, inside = self.scheduler, self.inside
        own, waiting, each, chunked = rules.admits_with_output, inside.waiting, inside.each, rules.chunked
        whole = rules.longest_chunk if chunked else rules.token_budget
        slots = rules.max_num_seqs - inside.decoding - len(inside.partial)
        while budget > 0 and slots > 0:
            if not waiting:
                if self.arrivals and self.arrivals[0][0] <= self.clock.now:
                    self._arrive()
                if not waiting:
                    break
            request = waiting[0]
            more = size = request.size
            response = own * (request.whole - size)
            need = kept + response
            if size + each + (need if need > beside else beside) > free:
                break
            if size > budget or size > whole:
                if not chunked and (beside or new):
                    break
                more = min(budget, whole) if chunked else size
            waiting.popleft()
            inside.newest.append(request)
            new.append(more)
            if more == size:
                completed.append(request)
            else:
                inside.begin(request, more)
            kept += response
            budget -= more
            free -= size + each
            slots -= 1

    def _start(self, requests: list[Request]) -> None:
        """Their prompts are computed: each has one more token and decodes from now on."""
        inside, turn = self.inside, self.clock.turn
        ticks, ends, order = inside.ticks, inside.ends, inside.admitted
        for request in requests:
            if request.cached:
                inside.completed(request)
            request.end = end = ticks - 1 + request.whole - request.size
            if request.first < 0:
                request.first = turn
            inside.read += request.size - ticks
            inside.until += end
            order += 1
            heappush(ends, (end, order, request))
        inside.decoding += len(requests)
        inside.admitted = order

    def _decode(self, room: int) -> None:
        """Decode until a sequence ends, the cache is full, or the next arrival is seen."""
        inside, clock, arrivals = self.inside, self.clock, self.arrivals
        if not arrivals and self.sent == len(self.lengths):
            inside.decode_on(clock, room, self.scheduler.mixes)
            return
        active, ticks = inside.decoding, inside.ticks
        if room < active:
            room = inside.make_room()
            active = inside.decoding
        context, steps = inside.read + active * ticks, inside.ends[0][0] - ticks
        steps = steps if steps * active <= room else room // active
        if inside.waiting or not arrivals:  # and those sent when it is over are not seen before
            self.last = (active, context + active * (steps - 1))
            clock.pass_s(self.prices.stretch_s(active, context, steps))
        else:
            left, ahead = arrivals[0][0] - clock.now, self.scheduler.plans_ahead
            steps, before, whole = self.prices.until_s(active, context, steps, left, ahead)
            self.planned, self.last = clock.now + before, None
            clock.pass_s(whole)
        inside.ticks = ticks + steps

    def _finish(self) -> None:
        """Those that have all of their response leave, and the client sends as many more."""
        inside, turn, ended = self.inside, self.clock.turn, self.ended
        ends, ticks = inside.ends, inside.ticks
        while ends and ends[0][0] <= ticks:
            end, _, request = heappop(ends)
            if request.end == end:  # or it was evicted since
                request.end = LEFT
                inside.decoding -= 1
                inside.read -= request.whole - 1 - end
                inside.until -= end
                self.over += (request.sent, request.first, turn, request.response, 1)
                self.ended += 1
        if ends and ends[0][2].end != ends[0][0]:
            inside.drop()
        if self.sent < len(self.lengths):
            self._send(min(self.ended - ended, len(self.lengths) - self.sent))
