"""An engine's scheduler, request by request: what waits, what is admitted, what each step computes.

A step takes its price from ``StepPrices``; stretches of steps that only decode are priced in one go, and requests that
go through the engine together are one record, so a run costs as many turns of the loop as it has steps with a prefill
or an arrival. Once all requests have arrived nothing depends on the time any more, and decode steps are priced last.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.requests import Clock, Group
from simulator.serving.run import Served, check

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.serving.run import Load, Scheduler, StepPrices

FEW = 8
"""Decode steps that are priced one by one without asking first how many of them are needed."""


def serve(scheduler: Scheduler, load: Load, prices: StepPrices) -> Served:
    """Run ``load`` to its end; raises as ``serving.run.check``."""
    check(scheduler, load)
    loop = _Loop(scheduler, load, prices, load.lengths(), Clock(prices))
    loop.run()
    times = loop.clock.times()
    kept = _latencies(loop.done, times)[load.warm_up :]
    (ttft, tpot), (ttft_median, tpot_median) = kept.mean(axis=0).tolist(), np.median(kept, axis=0).tolist()
    tokens, duration = sum(response for _, response in loop.lengths), float(times[-1])
    return Served(ttft, tpot, ttft_median, tpot_median, tokens / duration, duration, loop.evictions)


def _latencies(done: list[tuple[int, int, int, int, int]], times: Floats) -> Floats:
    """Time to the first token and per token after it, shape ``[requests, 2]``, in the order in which they ended."""
    sent, first, end, response, count = np.asarray(done).T
    began = times[first]
    both = np.stack([began - times[sent], (times[end] - began) / np.maximum(response - 1, 1)], axis=1)
    return np.asarray(np.repeat(both, count, axis=0), dtype=np.float64)


@dataclass(eq=False, slots=True)
class _Loop:
    """The state of a run; ``ticks`` counts steps with decodes, ``held`` the cache tokens given away."""

    scheduler: Scheduler
    load: Load
    prices: StepPrices
    lengths: list[tuple[int, int]]
    clock: Clock
    planned: float = 0.0
    front_free: float = 0.0
    ticks: int = 0
    sent: int = 0
    ended: int = 0
    admitted: int = 0
    evictions: int = 0
    held: int = 0
    filling: int = 0  # requests whose prompts are begun
    decoding: int = 0
    context: int = 0  # tokens that the decoding sequences read
    to_come: int = 0  # response tokens that the admitted sequences still have to make
    arrivals: deque[tuple[float, Group]] = field(default_factory=deque)
    waiting: deque[Group] = field(default_factory=deque)
    partial: deque[Group] = field(default_factory=deque)
    newest: list[Group] = field(default_factory=list)
    ends: list[tuple[int, int, Group]] = field(default_factory=list)
    done: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def run(self) -> None:
        rules, all_requests = self.scheduler, self.load.num_requests
        self._send(min(self.load.concurrency, all_requests))
        while self.ended < all_requests:
            if self.arrivals:
                self._arrive()
            evicted = rules.mixes and self.held + self.decoding > rules.kv_tokens and self._make_room()
            plan = self._plan(evicted) if self.partial or (not evicted and self._may_admit()) else None
            if plan:
                self._step_with_prefill(plan)
            elif self.decoding:
                self._decode(evicted)
            else:
                self.clock.pass_s(self.arrivals[0][0] - self.clock.now)
                self.planned = self.clock.now

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
            self.waiting.append(self.arrivals.popleft()[1])

    def _may_admit(self, beside: int = 0) -> bool:
        """Whether the cache holds the first that waits and so much beside; planning sees what else it needs."""
        if not self.waiting:
            return False
        first = self.waiting[0]
        taken = first.prompt + first.made + self.scheduler.tokens_of_a_sequence  # nothing of what waits is cached
        return self.held + beside + taken <= self.scheduler.kv_tokens

    def _make_room(self) -> bool:
        """Evict the newest requests until the next decode step fits; whether any was evicted."""
        before = self.evictions
        while self.decoding and self.held + self.decoding > self.scheduler.kv_tokens:
            self._evict()
        return self.evictions > before

    def _plan(self, evicted: bool) -> list[tuple[Group, int]]:
        """Groups and how many tokens of each request this step computes; prompts begun first, then those that wait."""
        beside = self.decoding if self.scheduler.mixes else 0
        budget, longest = self.scheduler.token_budget - beside, self.scheduler.longest_chunk
        plan = []
        for group in self.partial:  # each of one request
            size = min(group.missing, budget, longest)
            if size > 0:
                plan.append((group, size))
                budget -= size
        return plan if evicted else plan + self._admit(budget, beside)

    def _admit(self, budget: int, beside: int) -> list[tuple[Group, int]]:
        rules, plan = self.scheduler, list[tuple[Group, int]]()
        alone = beside + self.filling == 0
        kept = rules.keeps_for_running * self.to_come  # before this step's admissions, whose own share comes on top
        longest = rules.longest_chunk
        while self.waiting and budget > 0:
            group = self.waiting[0]
            missing = group.prompt + group.made
            response = rules.admits_with_output * (group.response - group.made)
            fit = self._fit(group, missing, response, kept, beside)
            if fit < 1:
                break
            size = longest if rules.chunked and missing > longest else missing
            whole = min(fit, budget // size)
            if not whole and not rules.chunked and not (alone and not plan):
                break
            size = size if whole or not rules.chunked else budget
            count = max(whole, 1) if size == missing else 1
            plan.append((self._take(count), size))
            kept += response * count
            budget -= size * count
        return plan

    def _fit(self, group: Group, missing: int, response: float, kept: float, beside: int) -> int:
        """How many of a group have a slot, and room for what they miss and for what is kept of the responses."""
        taken = missing + self.scheduler.tokens_of_a_sequence
        free = self.scheduler.kv_tokens - self.held
        slots = self.scheduler.max_num_seqs - self.decoding - self.filling
        if slots < 1 or taken + max(kept + response, beside) > free:
            return 0
        if group.count == 1:
            return 1
        return min(group.count, slots, (free - beside) // taken, int((free - kept) / (taken + response)))

    def _take(self, count: int) -> Group:
        """Admit so many of the group that waits first."""
        first = self.waiting[0]
        group = first.split(count)
        if group is first:
            self.waiting.popleft()
        group.order, group.state = self.admitted, "prefill"
        self.admitted += count
        self.filling += count
        self.held += count * (group.prompt + group.made + self.scheduler.tokens_of_a_sequence)
        self.to_come += count * (group.response - group.made)
        self.partial.append(group)
        self.newest.append(group)
        return group

    def _step_with_prefill(self, plan: list[tuple[Group, int]]) -> None:
        """One step with prefill; prompts that it completes give a token at its end."""
        chunks = [(size, group.cached) for group, size in plan for _ in range(group.count)]
        completed = [group for group, size in plan if size == group.missing]
        beside, context = (self.decoding, self.context) if self.scheduler.mixes else (0, 0)
        self.planned = self.clock.now
        heads = beside + sum(group.count for group in completed)
        self.clock.pass_s(self.prices.mixed_step_s(beside, context, chunks, heads))
        for group, size in plan:
            group.cached += size
        if beside:
            self._advance(1)
        for group in completed:
            self._start(group)
        if completed:
            self.partial = deque(group for group in self.partial if group.state == "prefill")
        self._finish()

    def _start(self, group: Group) -> None:
        """The prompts are computed: each request has one more token and decodes from now on."""
        group.made += 1
        group.state = "decode"
        group.base = self.ticks - group.made
        if group.first < 0:
            group.first = self.clock.turn
        self.filling -= group.count
        self.decoding += group.count
        self.context += group.cached * group.count
        self.to_come -= group.count
        heapq.heappush(self.ends, (group.base + group.response, group.order, group))

    def _advance(self, steps: int) -> None:
        grown = steps * self.decoding
        self.ticks += steps
        self.context += grown
        self.held += grown
        self.to_come -= grown

    def _decode(self, evicted: bool) -> None:
        """Decode until a sequence ends, the cache is full, or the next arrival is seen."""
        if not self.arrivals and self.sent == self.load.num_requests:
            self._decode_untimed(evicted)
        else:
            self._decode_timed(self._decode_steps(evicted))
        self._finish()

    def _decode_untimed(self, evicted: bool) -> None:
        """Decode, past a full cache too, until a sequence ends or one that waits may come in: no arrival, no clock."""
        while True:
            steps = self._decode_steps(evicted)
            self.clock.later(self.decoding, self.context, steps)
            self._advance(steps)
            if self.ends[0][0] <= self.ticks or self.partial or self._may_admit():
                return
            evicted = self.held + self.decoding > self.scheduler.kv_tokens and self._make_room()
            if not self.decoding:
                return

    def _decode_steps(self, evicted: bool) -> int:
        """Steps until a sequence ends or the cache is full."""
        room = self.scheduler.kv_tokens - self.held
        if self.decoding > room:
            evicted = self._make_room() or evicted
            room = self.scheduler.kv_tokens - self.held
        while not self._is_current(self.ends[0]):  # evicted since: it has a new base, or none
            heapq.heappop(self.ends)
        if evicted and self._may_admit(self.decoding):
            return 1  # what was evicted comes back in the next step
        return min(self.ends[0][0] - self.ticks, room // self.decoding)

    def _decode_timed(self, steps: int) -> None:
        """Let time pass by at most so many decode steps, and by no more than until the next arrival is seen."""
        active, context, prices = self.decoding, self.context, self.prices
        if not self.arrivals or self.waiting:
            before = prices.stretch_s(active, context, steps - 1)
            whole = before + prices.decode_steps_s(active, context + active * (steps - 1), 1)[0]
        else:
            left = self.arrivals[0][0] - self.clock.now
            if steps > FEW:  # they grow longer, so no more of them fit than of the first
                steps = min(steps, int(max(left, 0.0) / prices.decode_steps_s(active, context, 1)[0]) + 3)
            passed = [0.0, *accumulate(prices.decode_steps_s(active, context, steps))]
            steps = max(1, min(steps, bisect_left(passed, left) + int(self.scheduler.plans_ahead)))
            before, whole = passed[steps - 1], passed[steps]
        self.planned = self.clock.now + before
        self.clock.pass_s(whole)
        self._advance(steps)

    def _is_current(self, end: tuple[int, int, Group]) -> bool:
        return end[2].state == "decode" and end[2].order == end[1]

    def _finish(self) -> None:
        ends, ticks = self.ends, self.ticks
        if not ends or ends[0][0] > ticks:
            return
        while ends and ends[0][0] <= ticks:
            end = heapq.heappop(ends)
            if not self._is_current(end):
                continue
            group = end[2]
            self._leave(group)
            group.state = "done"
            self.done.append((group.sent, group.first, self.clock.turn, group.response, group.count))
            self.ended += group.count
            if self.sent < self.load.num_requests:
                self._send(min(group.count, self.load.num_requests - self.sent))
        while self.newest and self.newest[-1].state in ("done", "waiting"):
            self.newest.pop()

    def _leave(self, group: Group) -> None:
        """Give the cache of a decoding group back."""
        group.made = self.ticks - group.base
        length = group.prompt + group.made - 1
        self.decoding -= group.count
        self.context -= group.count * length
        self.held -= group.count * (length + self.scheduler.tokens_of_a_sequence)
        self.to_come -= group.count * (group.response - group.made)

    def _evict(self) -> None:
        """The newest request gives its cache back and waits, first in line, to be computed again."""
        while self.newest[-1].state not in ("prefill", "decode"):
            self.newest.pop()
        group = self.newest[-1].split(1)
        if group is self.newest[-1]:
            self.newest.pop()
        if group.state == "decode":
            self._leave(group)
        else:
            self.partial.remove(group)
            self.filling -= 1
            self.held -= group.prompt + group.made + self.scheduler.tokens_of_a_sequence
            self.to_come -= group.response - group.made
        group.state, group.cached = "waiting", 0
        self.waiting.appendleft(group)
        self.evictions += 1
