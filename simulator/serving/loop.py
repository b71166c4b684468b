"""An engine's scheduler, request by request: what waits, what is admitted, what each step computes.

A step takes its price from ``StepPrices``; stretches of steps that only decode are priced in one go, so a run costs
as many turns of the loop as it has steps with a prefill or an arrival.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from simulator.serving.run import Served, check

if TYPE_CHECKING:
    from simulator.serving.run import Load, Scheduler, StepPrices


FEW = 32
"""Decode steps in a row that are priced one by one, at most: numpy takes longer for so few."""


def serve(scheduler: Scheduler, load: Load, prices: StepPrices) -> Served:
    """Run ``load`` to its end; raises as ``serving.run.check``."""
    check(scheduler, load)
    loop = _Loop(scheduler, load, prices, load.lengths())
    loop.run()
    kept = np.asarray(loop.latencies[load.warm_up :])
    (ttft, tpot), (ttft_median, tpot_median) = kept.mean(axis=0).tolist(), np.median(kept, axis=0).tolist()
    tokens = sum(response for _, response in loop.lengths)
    return Served(ttft, tpot, ttft_median, tpot_median, tokens / loop.now, loop.now, loop.evictions)


@dataclass(eq=False, slots=True)
class _Request:
    """A request in the engine: ``made`` response tokens so far, ``cached`` tokens computed of what it must read.

    While it decodes it has ``ticks - base`` response tokens, all but the last of them in the cache.
    """

    sent_s: float
    prompt: int
    response: int
    order: int = 0
    cached: int = 0
    made: int = 0
    base: int = 0
    first_s: float = -1.0
    state: Literal["waiting", "prefill", "decode", "done"] = "waiting"

    @property
    def missing(self) -> int:
        return self.prompt + self.made - self.cached


@dataclass(eq=False, slots=True)
class _Loop:
    """The state of a run; ``ticks`` counts steps with decodes, ``held`` the cache tokens given away."""

    scheduler: Scheduler
    load: Load
    prices: StepPrices
    lengths: list[tuple[int, int]]
    now: float = 0.0
    planned: float = 0.0
    front_free: float = 0.0
    ticks: int = 0
    sent: int = 0
    admitted: int = 0
    evictions: int = 0
    held: int = 0
    decoding: int = 0
    context: int = 0  # tokens that the decoding sequences read
    to_come: int = 0  # response tokens that the decoding sequences still have to make
    arrivals: deque[tuple[float, _Request]] = field(default_factory=deque)
    waiting: deque[_Request] = field(default_factory=deque)
    partial: deque[_Request] = field(default_factory=deque)
    newest: list[_Request] = field(default_factory=list)
    ends: list[tuple[int, int, _Request]] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)

    def run(self) -> None:
        for _ in range(min(self.load.concurrency, self.load.num_requests)):
            self._send()
        while len(self.latencies) < self.load.num_requests:
            if self.arrivals:
                self._arrive()
            evicted = self.scheduler.mixes and self._make_room()
            plan = self._plan(evicted) if self.partial or (not evicted and self._may_admit()) else None
            if plan:
                self._step_with_prefill(plan)
            elif self.decoding:
                self._decode(evicted)
            else:
                self.now = self.planned = self.arrivals[0][0]

    def _send(self) -> None:
        """The client sends the next request; the front end takes it when it is done with those before."""
        start = max(self.now, self.front_free)
        prompt, response = self.lengths[self.sent]
        self.front_free = start + self.load.front_end_s_per_prompt_token * prompt
        request = _Request(self.now, prompt, response)
        self.arrivals.append((self.front_free + self.load.front_end_s, request))  # no earlier than those before
        self.sent += 1

    def _arrive(self) -> None:
        seen = self.planned if self.scheduler.plans_ahead else self.now
        while self.arrivals and self.arrivals[0][0] <= seen:
            self.waiting.append(self.arrivals.popleft()[1])

    def _may_admit(self) -> bool:
        """Whether the cache holds the first that waits; what else it needs is seen when the step is planned."""
        if not self.waiting:
            return False
        taken = self.waiting[0].missing + self.scheduler.tokens_of_a_sequence
        return self.held + taken <= self.scheduler.kv_tokens

    def _make_room(self) -> bool:
        """Evict the newest requests until the next decode step fits; whether any was evicted."""
        room = self.scheduler.kv_tokens
        if self.held + self.decoding <= room:
            return False
        before = self.evictions
        while self.decoding and self.held + self.decoding > room:
            self._evict()
        return self.evictions > before

    def _plan(self, evicted: bool) -> list[tuple[_Request, int]]:
        """Requests and how many tokens of each this step computes; prompts begun first, then those that wait."""
        beside = self.decoding if self.scheduler.mixes else 0
        budget = self.scheduler.token_budget - beside
        plan = []
        for request in self.partial:
            size = min(request.missing, budget, self.scheduler.longest_chunk)
            if size > 0:
                plan.append((request, size))
                budget -= size
        return plan if evicted else plan + self._admit(budget, beside)

    def _admit(self, budget: int, beside: int) -> list[tuple[_Request, int]]:
        rules, plan = self.scheduler, list[tuple[_Request, int]]()
        if not self.waiting:
            return plan
        alone = beside + len(self.partial) == 0
        kept = rules.keeps_for_running * self.to_come  # before this step's admissions, whose own share comes on top
        while self.waiting and budget > 0 and self.decoding + len(self.partial) < rules.max_num_seqs:
            request = self.waiting[0]
            missing = request.prompt + request.made - request.cached
            response = rules.admits_with_output * (request.response - request.made)
            taken = missing + rules.tokens_of_a_sequence
            if self.held + taken + max(kept + response, beside) > rules.kv_tokens:
                break
            size = min(missing, budget, rules.longest_chunk) if rules.chunked else missing
            if size > budget and not (alone and not plan):
                break
            self._take(self.waiting.popleft())
            kept += response
            plan.append((request, size))
            budget -= size
        return plan

    def _take(self, request: _Request) -> None:
        request.order, request.state = self.admitted, "prefill"
        self.admitted += 1
        self.held += request.missing + self.scheduler.tokens_of_a_sequence
        self.to_come += request.response - request.made
        self.partial.append(request)
        self.newest.append(request)

    def _step_with_prefill(self, plan: list[tuple[_Request, int]]) -> None:
        """One step with prefill; prompts that it completes give a token at its end."""
        chunks = [(size, request.cached) for request, size in plan]
        completed = [request for request, size in plan if size == request.missing]
        beside, context = (self.decoding, self.context) if self.scheduler.mixes else (0, 0)
        self.planned = self.now
        self.now += self.prices.mixed_step_s(beside, context, chunks, beside + len(completed))
        for request, size in plan:
            request.cached += size
        if beside:
            self._advance(1)
        for request in completed:
            self._start(request)
        if completed:
            self.partial = deque(request for request in self.partial if request.state == "prefill")
        self._finish()

    def _start(self, request: _Request) -> None:
        """The prompt is computed: the request has one more token and decodes from now on."""
        request.made += 1
        request.state = "decode"
        request.base = self.ticks - request.made
        if request.first_s < 0.0:
            request.first_s = self.now
        self.decoding += 1
        self.context += request.cached
        self.to_come -= 1
        heapq.heappush(self.ends, (request.base + request.response, request.order, request))

    def _advance(self, steps: int) -> None:
        grown = steps * self.decoding
        self.ticks += steps
        self.context += grown
        self.held += grown
        self.to_come -= grown

    def _decode(self, evicted: bool) -> None:
        """Decode until a sequence ends, the cache is full, or the next arrival is seen."""
        rules = self.scheduler
        evicted = evicted or (not rules.mixes and self._make_room())
        self._drop_evicted()
        steps = min(self.ends[0][0] - self.ticks, (rules.kv_tokens - self.held) // self.decoding)
        steps = 1 if evicted else steps  # what was evicted may come back in the next step
        if steps == 1 or (steps <= FEW and not self.arrivals):
            until_last, whole = self.prices.few_decode_steps_s(self.decoding, self.context, steps)
            self.planned, self.now = self.now + until_last, self.now + whole
        else:
            steps = self._decode_until_seen(steps)
        self._advance(steps)
        self._finish()

    def _decode_until_seen(self, steps: int) -> int:
        """Let time pass by at most so many decode steps, and by no more than until the next arrival is seen."""
        times = self.prices.decode_steps_s(self.decoding, self.context, steps)
        starts = self.now + np.concatenate([[0.0], np.cumsum(times)])
        taken = steps
        if self.arrivals and not self.waiting:
            seen = int(np.searchsorted(starts, self.arrivals[0][0], side="left")) + int(self.scheduler.plans_ahead)
            taken = max(1, min(steps, seen))
        self.now, self.planned = float(starts[taken]), float(starts[taken - 1])
        return taken

    def _drop_evicted(self) -> None:
        """Forget ends of requests that were evicted since: they have a new base, or none."""
        while self.ends and not self._is_current(self.ends[0]):
            heapq.heappop(self.ends)

    def _is_current(self, end: tuple[int, int, _Request]) -> bool:
        return end[2].state == "decode" and end[2].order == end[1]

    def _finish(self) -> None:
        while self.ends and self.ends[0][0] <= self.ticks:
            end = heapq.heappop(self.ends)
            if not self._is_current(end):
                continue
            request = end[2]
            self._leave(request)
            request.state = "done"
            ttft, tokens = request.first_s - request.sent_s, max(request.response - 1, 1)
            self.latencies.append((ttft, (self.now - request.first_s) / tokens))
            if self.sent < self.load.num_requests:
                self._send()
        while self.newest and self.newest[-1].state in ("done", "waiting"):
            self.newest.pop()

    def _leave(self, request: _Request) -> None:
        """Give the cache of a decoding request back."""
        request.made = self.ticks - request.base
        length = request.prompt + request.made - 1
        self.decoding -= 1
        self.context -= length
        self.held -= length + self.scheduler.tokens_of_a_sequence
        self.to_come -= request.response - request.made

    def _evict(self) -> None:
        """The newest request gives its cache back and waits, first in line, to be computed again."""
        request = self.newest.pop()
        while request.state not in ("prefill", "decode"):
            request = self.newest.pop()
        if request.state == "decode":
            self._leave(request)
        else:
            self.partial.remove(request)
            self.held -= request.prompt + request.made + self.scheduler.tokens_of_a_sequence
            self.to_come -= request.response - request.made
        request.state, request.cached = "waiting", 0
        self.waiting.appendleft(request)
        self.evictions += 1
