"""Requests that are all alike, each sent as soon as another ends: what an engine does with them is a queue.

Who came first is first in line, first in the cache and last to be evicted, so that no younger request is ever ahead of
it. Those that run end in the order in which they came: one that runs is no more than the tick at which it ends, one
that was evicted no more than the tokens that it has. Where the front end takes no time nothing depends on the
time either, and all steps are priced last; otherwise those are until all requests have been seen. Runs of two thousand
requests on a small cache evict ten thousand times, hence few calls here.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.line import Line

if TYPE_CHECKING:
    from profiles.records import Ints
    from simulator.serving.run import Load, Scheduler


def is_queue(scheduler: Scheduler, load: Load) -> bool:
    """Whether ``Queue`` can run it: requests alike, seen in the order they are sent, one prompt at most begun."""
    return load.shortest_share == 1.0 and scheduler.copies == 1 and load.front_end_s_per_prompt_token == 0.0


class Queue(Line):
    """An engine that serves a ``Line`` to its end."""

    __slots__ = ()

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
        each, mixes, tokens = rules.tokens_of_a_sequence, rules.mixes, rules.kv_tokens
        requests, prompt = load.num_requests, load.input_tokens
        self.unsent, self.timed, self.whole = requests, load.front_end_s > 0.0, prompt + load.output_tokens
        self.send(load.concurrency)
        self.fresh, self.coming = self.fresh + self.coming, 0
        while self.ended < requests:
            if self.timed and self.arrivals and self.arrivals[0][0] <= self.clock.now:
                self.see()
            active = len(running)
            room = tokens - self.context - active * each
            beside = active if mixes else 0
            if self.begun:
                room -= self.begun + each
                fits = room >= beside
            elif evicted:  # planning costs more than to see that the cache does not hold the first in line
                fits = evicted[-1] + each + beside <= room
            else:
                fits = self.fresh > 0 and prompt + each + beside <= room
            if not (fits and self._prefill(room)):
                if active and mixes and not (self.timed or self.coming):
                    self._decode(room)
                elif active:
                    self._decode_once(room)
                elif self.timed:
                    self._wait()
            if self.coming:
                self.fresh += self.coming
                self.coming = 0
            if running and running[0] == self.ticks:
                self._finish()

    def _wait(self) -> None:
        """Nothing is inside or in line until the next arrival."""
        self.clock.pass_s(self.arrivals[0][0] - self.clock.now)
        self.planned = self.clock.now

    def _finish(self) -> None:
        """Those that have all of their response leave, and the client sends as many more."""
        running, ticks, count = self.running, self.ticks, 1
        running.popleft()
        while running and running[0] == ticks:
            running.popleft()
            count += 1
        self.ended += count
        self.context -= count * (self.whole - 1)
        self.last.append((self.clock.turn, count))
        if self.unsent:
            self.send(count)

    # Long, as ten thousands of evictions go through here.
    def _decode(self, room: int) -> None:
        """Decode until a request ends. Whenever the cache is full the youngest leaves it, and is first in line."""
        running, evicted, each, ticks = self.running, self.evicted, self.scheduler.tokens_of_a_sequence, self.ticks
        if self.begun:
            if room >= len(running):
                self._decode_once(room)
                return
            room = self.evict(room)
        active, before, pop, leaves = len(running), len(evicted), running.pop, evicted.append
        stretches: list[int] = []
        free = self.context + room  # of the cache, for what decodes read
        left, grown = running[0] - ticks, ticks + self.whole
        while True:
            while room < active:
                has = grown - pop()
                leaves(has)
                room += has - 1 + each
                free += each
                active -= 1
            steps = room // active
            if steps >= left:
                break
            stretches += (active, free - room, steps)
            room -= steps * active
            grown += steps
            left -= steps
        stretches += (active, free - room, left)
        self.context, self.ticks = free - room + left * active, running[0]
        self.evictions += len(evicted) - before
        self.clock.later(stretches)

    def _decode_once(self, room: int) -> None:
        """Decode until a request ends, the cache is full, or an arrival is seen."""
        clock, running, arrivals, before = self.clock, self.running, self.arrivals, 0.0
        room = room if room >= len(running) else self.evict(room)
        active, context, in_line = len(running), self.context, self.evicted or self.fresh
        steps = min(running[0] - self.ticks, room // active)
        if not self.timed:
            steps = 1 if self.coming and not in_line else steps  # these are seen after a step
            clock.later([active, context, steps])
        else:
            prices = clock.prices
            if in_line or not arrivals:  # and those sent when it is over are not seen before
                whole = prices.stretch_s(active, context, steps)
                if arrivals and self.scheduler.plans_ahead:
                    before = whole - prices.stretch_s(active, context + active * (steps - 1), 1)
            else:
                left, ahead = arrivals[0][0] - clock.now, self.scheduler.plans_ahead
                steps, before, whole = prices.until_s(active, context, steps, left, ahead)
            self.planned = clock.now + before
            clock.pass_s(whole)
        self.ticks += steps
        self.context = context + steps * active

    # Long, as thousands of steps go through here.
    def _prefill(self, room: int) -> bool:
        """One step with as much of prompts as it takes, the one that is begun first; whether it takes any."""
        rules, running, begun, context, clock = self.scheduler, self.running, self.begun, self.context, self.clock
        active = len(running)
        # A prompt that the step completes gives a token at its end, as if its request had decoded in it.
        beside, read, ends = (active, context, self.ticks) if rules.mixes and active else (0, 0, self.ticks - 1)
        budget, come = rules.token_budget - beside, 0
        spare: float = room
        new: list[int] = []
        past: list[int] = []
        if budget <= 0:
            return False
        if rules.keeps_for_running:
            to_come = active * (self.whole - 1) - context + (self.whole - begun if begun else 0)
            spare -= rules.keeps_for_running * to_come
        if begun:
            past.append(self.cached)
            left = begun - self.cached
            if left <= budget:
                budget -= left
                new.append(left)
                running.append(ends + self.whole - begun)
                come, self.begun = begun, 0
            else:
                new.append(budget)
                self.cached += budget
                budget = 0
        if budget:
            if self.evicted:
                come += self.admit_evicted(budget, room - beside, spare, ends, new)
            elif self.fresh:
                come += self.admit_fresh(budget, room - beside, spare, ends, new)
            if not new:
                return False
        inside = len(running)
        if self.timed:
            self.planned = clock.now
            clock.pass_s(clock.prices.mixed_step_s(beside, read, new, past, beside + inside - active))
        else:
            clock.mixed_later(beside, read, new, past, beside + inside - active)
        self.ticks, self.context = ends + 1, context + beside + come
        reached = self.ended + inside
        if reached > self.started:  # those that come back had their first token before
            self.first.append((clock.turn, reached - self.started))
            self.started = reached
        return True
