"""An engine's scheduler, request by request: what waits, what is admitted, what each step computes.

A step takes its price from ``StepPrices``; stretches of steps that only decode are priced in one go, and requests that
go through the engine together are one record, so a run costs as many turns of the loop as it has steps with a prefill
or an arrival. Once all requests have arrived nothing depends on the time any more, and all steps are priced last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.queue import Queue, is_queue
from simulator.serving.requests import Clock, Group
from simulator.serving.run import Served, check
from simulator.serving.sequences import Sequences

if TYPE_CHECKING:
    from profiles.records import Floats, Ints
    from simulator.serving.run import Chunk, Load, Scheduler, StepPrices


def serve(scheduler: Scheduler, load: Load, prices: StepPrices) -> Served:
    """Run ``load`` to its end; raises as ``serving.run.check``."""
    check(scheduler, load)
    clock, lengths = Clock(prices), load.lengths()
    loop: Queue | _Loop
    if is_queue(scheduler, load):
        loop = Queue(scheduler, load, clock)
    else:
        inside = Sequences(scheduler.kv_tokens, scheduler.tokens_of_a_sequence)
        loop = _Loop(scheduler, load, prices, lengths, clock, inside)
    loop.run()
    times = clock.times()
    kept = _latencies(loop.done, times)[load.warm_up :]
    (ttft, tpot), (ttft_median, tpot_median) = kept.mean(axis=0).tolist(), np.median(kept, axis=0).tolist()
    tokens, duration = sum(response for _, response in lengths), float(times[-1])
    return Served(ttft, tpot, ttft_median, tpot_median, tokens / duration, duration, loop.evictions)


def _latencies(done: Ints, times: Floats) -> Floats:
    """Time to the first token and per token after it, shape ``[requests, 2]``, in the order in which they ended."""
    sent, first, end, response, count = done.T
    began = times[first]
    both = np.stack([began - times[sent], (times[end] - began) / np.maximum(response - 1, 1)], axis=1)
    return np.asarray(np.repeat(both, count, axis=0), dtype=np.float64)


@dataclass(eq=False, slots=True)
class _Loop:
    """The state of a run: requests sent and ended, those on their way to the scheduler, and those ``inside``."""

    scheduler: Scheduler
    load: Load
    prices: StepPrices
    lengths: list[tuple[int, int]]
    clock: Clock
    inside: Sequences
    planned: float = 0.0
    front_free: float = 0.0
    sent: int = 0
    ended: int = 0
    arrivals: deque[tuple[float, Group]] = field(default_factory=deque)
    over: list[int] = field(default_factory=list)

    def run(self) -> None:
        mixes, all_requests, inside = self.scheduler.mixes, self.load.num_requests, self.inside
        waiting, ends, each = inside.waiting, inside.ends, inside.each
        arrivals, clock, ahead = self.arrivals, self.clock, self.scheduler.plans_ahead
        self._send(min(self.load.concurrency, all_requests))
        while self.ended < all_requests:
            if arrivals and arrivals[0][0] <= (self.planned if ahead else clock.now):
                self._arrive()
            room = inside.room
            evicted = mixes and room < inside.decoding
            if evicted:
                room = inside.make_room()
            # Planning costs more than to see that the cache does not hold the first that waits.
            fits = not evicted and waiting and waiting[0].prompt + waiting[0].made + each <= room
            if (fits or inside.partial) and self._prefill(evicted):
                pass
            elif inside.decoding:
                self._decode(room)
            else:
                self.clock.pass_s(self.arrivals[0][0] - self.clock.now)
                self.planned = self.clock.now
            if ends and ends[0][0] <= inside.ticks:
                self._finish()

    @property
    def done(self) -> Ints:
        """Turns at which requests were sent, began and ended, their response and count, shape ``[groups, 5]``."""
        return np.fromiter(self.over, np.int64).reshape(-1, 5)

    @property
    def evictions(self) -> int:
        """Requests evicted so far."""
        return self.inside.evictions

    def _send(self, count: int) -> None:
        """The client sends the next requests; the front end takes each when it is done with those before."""
        load, now = self.load, self.clock.now
        alike = load.shortest_share == 1.0 and load.front_end_s_per_prompt_token == 0.0
        for _ in range(1 if alike else count):
            prompt, response = self.lengths[self.sent]
            self.front_free = max(now, self.front_free) + load.front_end_s_per_prompt_token * prompt
            group = Group(self.clock.turn, prompt, response, count if alike else 1)
            self.arrivals.append((self.front_free + load.front_end_s, group))  # no earlier than those before
            self.sent += group.count

    def _arrive(self) -> None:
        seen = self.planned if self.scheduler.plans_ahead else self.clock.now
        while self.arrivals and self.arrivals[0][0] <= seen:
            self.inside.waiting.append(self.arrivals.popleft()[1])

    # Long, as thousands of steps go through here and each call counts.
    def _prefill(self, evicted: bool) -> bool:
        """One step with as much of prompts as it takes, those begun first; whether it takes any.

        Prompts that it completes give a token at its end.
        """
        rules, inside, clock = self.scheduler, self.inside, self.clock
        beside, context = (inside.decoding, inside.context) if rules.mixes else (0, 0)
        budget, chunks, completed = rules.token_budget - beside, [], []
        for group in inside.partial:  # each of one request
            size, past = group.prompt + group.made, group.cached
            new = min(size - past, budget, rules.longest_chunk)
            if new > 0:
                chunks.append((new, past))
                budget -= new
                group.cached = past + new
                if past + new == size:
                    completed.append(group)
        if not evicted and budget > 0 and inside.waiting:
            self._admit(budget, beside, chunks, completed)
        if not chunks:
            return False
        self.planned = clock.now
        heads = beside + sum([group.count for group in completed])
        if self.arrivals or self.sent < self.load.num_requests:
            clock.pass_s(self.prices.mixed_step_s(beside, context, chunks, heads))
        else:
            clock.mixed_later(beside, context, chunks, heads)
        if beside:
            inside.ticks += 1
        if completed:
            inside.start(completed, clock.turn)
        return True

    # Long by the rules of all engines, each a line or two, and as thousands of requests come in here.
    def _admit(self, budget: int, beside: int, chunks: list[Chunk], completed: list[Group]) -> None:
        """Those that come in with this step, first in line first, and as much of their prompts as it takes."""
        rules, inside = self.scheduler, self.inside
        own, keeps, response, need = rules.admits_with_output, rules.keeps_for_running, 0.0, float(beside)
        kept = keeps * inside.to_come if keeps else 0.0  # before this step's admissions, whose own share comes on top
        waiting, newest, each, free = inside.waiting, inside.newest, inside.each, inside.room
        whole = rules.longest_chunk if rules.chunked else rules.token_budget
        slots = rules.max_num_seqs - inside.decoding - len(inside.partial)
        while waiting and budget > 0 and slots > 0:
            group, count = waiting[0], 1
            new = size = group.prompt + group.made
            taken = size + each
            if own or keeps:
                response = own * (group.response - group.made)
                need = max(kept + response, beside)
            if taken + need > free:
                break
            if size > budget or size > whole:
                if not rules.chunked and (beside or chunks):
                    break
                new = min(budget, whole) if rules.chunked else size
            elif group.count > 1:
                fit = min((free - beside) // taken, int((free - kept) / (taken + response)))
                count = max(min(budget // size, group.count, slots, fit), 1)
            group = waiting.popleft() if group.count == count else group.split(count)
            inside.admitted += 1
            group.order = inside.admitted
            newest.append(group)
            if new == size:
                completed.append(group)
            else:
                inside.begin(group, new)
            chunks += ((new, 0),) * count
            kept += response * count
            budget -= new * count
            free -= taken * count
            slots -= count

    def _decode(self, room: int) -> None:
        """Decode until a sequence ends, the cache is full, or the next arrival is seen."""
        inside, clock, prices = self.inside, self.clock, self.prices
        if not self.arrivals and self.sent == self.load.num_requests:
            inside.decode_on(clock, room, self.scheduler.mixes)
            return
        steps = inside.decode_steps(room)
        active, context, before = inside.decoding, inside.context, 0.0
        if not self.arrivals:  # and those sent when it is over are not seen before
            whole = prices.stretch_s(active, context, steps)
        elif inside.waiting:
            before = prices.stretch_s(active, context, steps - 1)
            whole = before + prices.stretch_s(active, context + active * (steps - 1), 1)
        else:
            left, ahead = self.arrivals[0][0] - clock.now, self.scheduler.plans_ahead
            steps, before, whole = prices.until_s(active, context, steps, left, ahead)
        self.planned = clock.now + before
        clock.pass_s(whole)
        inside.ticks += steps

    def _finish(self) -> None:
        """Those that have all of their response leave, and the client sends as many more."""
        before, turn = self.ended, self.clock.turn
        for group in self.inside.ended():
            self.over += (group.sent, group.first, turn, group.response, group.count)
            self.ended += group.count
        left = self.load.num_requests - self.sent
        if left:
            self._send(min(self.ended - before, left))
