"""An engine's scheduler, request by request: what waits, what is admitted, what each step computes.

A step takes its price from ``StepPrices``; stretches of steps that only decode are priced in one go, and requests that
go through the engine together are one record, so a run costs as many turns of the loop as it has steps with a prefill
or an arrival. Once all requests have arrived nothing depends on the time any more, and all steps are priced last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.requests import Clock, Group
from simulator.serving.run import Served, check
from simulator.serving.sequences import Sequences

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.serving.run import Load, Scheduler, StepPrices

FEW = 8
"""Decode steps that are priced one by one without asking first how many of them are needed."""


def serve(scheduler: Scheduler, load: Load, prices: StepPrices) -> Served:
    """Run ``load`` to its end; raises as ``serving.run.check``."""
    check(scheduler, load)
    inside = Sequences(scheduler.kv_tokens, scheduler.tokens_of_a_sequence)
    loop = _Loop(scheduler, load, prices, load.lengths(), Clock(prices), inside)
    loop.run()
    times = loop.clock.times()
    kept = _latencies(loop.done, times)[load.warm_up :]
    (ttft, tpot), (ttft_median, tpot_median) = kept.mean(axis=0).tolist(), np.median(kept, axis=0).tolist()
    tokens, duration = sum(response for _, response in loop.lengths), float(times[-1])
    return Served(ttft, tpot, ttft_median, tpot_median, tokens / duration, duration, inside.evictions)


def _latencies(done: list[tuple[int, int, int, int, int]], times: Floats) -> Floats:
    """Time to the first token and per token after it, shape ``[requests, 2]``, in the order in which they ended."""
    sent, first, end, response, count = np.asarray(done).T
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
    done: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def run(self) -> None:
        mixes, all_requests, inside = self.scheduler.mixes, self.load.num_requests, self.inside
        self._send(min(self.load.concurrency, all_requests))
        while self.ended < all_requests:
            if self.arrivals:
                self._arrive()
            evicted = mixes and inside.held + inside.decoding > inside.kv_tokens and inside.make_room()
            plan = self._plan(evicted) if inside.partial or (not evicted and inside.may_admit()) else None
            if plan:
                self._step_with_prefill(plan)
            elif inside.decoding:
                self._decode(evicted)
            else:
                self.clock.pass_s(self.arrivals[0][0] - self.clock.now)
                self.planned = self.clock.now
            if inside.ends and inside.ends[0][0] <= inside.ticks:
                self._finish()

    @property
    def _timed(self) -> bool:
        """Whether something depends on the time: a request that is on its way, or yet to be sent."""
        return bool(self.arrivals) or self.sent < self.load.num_requests

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

    def _plan(self, evicted: bool) -> list[tuple[Group, int]]:
        """Groups and how many tokens of each request this step computes; prompts begun first, then those that wait."""
        beside = self.inside.decoding if self.scheduler.mixes else 0
        budget, longest = self.scheduler.token_budget - beside, self.scheduler.longest_chunk
        plan = []
        for group in self.inside.partial:  # each of one request
            size = min(group.prompt + group.made - group.cached, budget, longest)
            if size > 0:
                plan.append((group, size))
                budget -= size
        if evicted:
            return plan
        admitted = self._admitted(budget, beside)
        self.inside.begin(admitted)
        return plan + admitted

    def _admitted(self, budget: int, beside: int) -> list[tuple[Group, int]]:
        """Those that come in with this step, first in line first, and how much of their prompts it computes."""
        rules, inside, plan = self.scheduler, self.inside, list[tuple[Group, int]]()
        kept = rules.keeps_for_running * inside.to_come  # before this step's admissions, whose own share comes on top
        own, waiting, each = rules.admits_with_output, inside.waiting, inside.each
        whole = rules.longest_chunk if rules.chunked else rules.token_budget
        free = inside.kv_tokens - inside.held
        slots = rules.max_num_seqs - inside.decoding - inside.filling
        while waiting and budget > 0 and slots > 0:
            group, count = waiting[0], 1
            size = group.prompt + group.made
            taken, response = size + each, own * (group.response - group.made)
            reserved = kept + response
            if taken + (reserved if reserved > beside else beside) > free:
                break
            if size > budget or size > whole:
                if not rules.chunked and (beside or plan or inside.filling):
                    break
                size = min(size, budget, rules.longest_chunk) if rules.chunked else size
            elif group.count > 1:
                fit = min((free - beside) // taken, int((free - kept) / (taken + response)))
                count = max(min(budget // size, group.count, slots, fit), 1)
            plan.append((waiting.popleft() if group.count == count else group.split(count), size))
            kept += response * count
            budget -= size * count
            free -= taken * count
            slots -= count
        return plan

    def _step_with_prefill(self, plan: list[tuple[Group, int]]) -> None:
        """One step with prefill; prompts that it completes give a token at its end."""
        inside, completed, finished = self.inside, list[Group](), 0
        chunks: list[tuple[int, int]] = []
        for group, size in plan:
            count, past = group.count, group.cached
            if count == 1:
                chunks.append((size, past))
            else:
                chunks += [(size, past)] * count
            group.cached = past + size
            if past + size == group.prompt + group.made:
                completed.append(group)
                finished += count
        beside, context = (inside.decoding, inside.context) if self.scheduler.mixes else (0, 0)
        step = (beside, context, chunks, beside + finished)
        self.planned = self.clock.now
        if self._timed:
            self.clock.pass_s(self.prices.mixed_step_s(*step))
        else:
            self.clock.mixed_later(step)
        if beside:
            inside.advance(1)
        if completed:
            inside.start(completed, self.clock.turn)

    def _decode(self, evicted: bool) -> None:
        """Decode until a sequence ends, the cache is full, or the next arrival is seen."""
        if self._timed:
            self._decode_timed(self.inside.decode_steps(evicted))
        else:
            self.inside.decode_on(self.clock, evicted)

    def _decode_timed(self, steps: int) -> None:
        """Let time pass by at most so many decode steps, and by no more than until the next arrival is seen."""
        active, context, prices = self.inside.decoding, self.inside.context, self.prices
        if not self.arrivals or self.inside.waiting:
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
        self.inside.advance(steps)

    def _finish(self) -> None:
        """Those that have all of their response leave, and the client sends as many more."""
        for group in self.inside.ended():
            self.done.append((group.sent, group.first, self.clock.turn, group.response, group.count))
            self.ended += group.count
            if self.sent < self.load.num_requests:
                self._send(min(group.count, self.load.num_requests - self.sent))
