"""Requests that are all alike, each sent as soon as another ends: what an engine does with them is a queue.

Who came first is first in line, first in the cache and last to be evicted, so that no younger request is ever ahead of
it. Those that run end in the order in which they came: one that runs is no more than the tick at which it ends, one
that was evicted no more than the tokens that it has. Where the front end takes no time nothing depends on the
time either, and all steps are priced last; otherwise those are until all requests have been seen. Runs of two thousand
requests on a small cache evict ten thousand times, hence few calls here.
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
    from simulator.serving.run import Load, Scheduler


def is_queue(scheduler: Scheduler, load: Load) -> bool:
    """Whether ``Queue`` can run it: requests alike, seen in the order they are sent, one prompt at most begun."""
    return load.shortest_share == 1.0 and scheduler.copies == 1 and load.front_end_s_per_prompt_token == 0.0


@dataclass(eq=False, slots=True)
class Queue:
    """An engine, the requests inside it, and those in line.

    Parameters
    ----------
    ticks, evictions, unsent, started, ended
        Steps with decodes and requests evicted so far, requests yet to be sent, that had a first token, and that ended.
    running, context
        Ticks at which those that decode end, oldest first, and tokens that they read in the next step.
    whole
        Tokens of a request that has ended.
    begun, cached
        Tokens of the prompt that is begun, and of them those that are computed. It is the youngest inside.
    evicted
        Tokens, of prompt and response, that each evicted request has by now, first in line last.
    fresh, coming
        Requests in line behind these, and those sent that are not seen yet where the front end takes no time.
    timed, planned, arrivals
        Whether requests are still to be seen at some time; when the last step was planned; and ``(time, count)`` at
        which those that were sent reach the line.
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
    context: int = 0
    whole: int = 0
    begun: int = 0
    cached: int = 0
    fresh: int = 0
    coming: int = 0
    timed: bool = False
    planned: float = 0.0
    running: deque[int] = field(default_factory=deque)
    evicted: list[int] = field(default_factory=list)
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)
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
        each, mixes, tokens = rules.tokens_of_a_sequence, rules.mixes, rules.kv_tokens
        requests, prompt = load.num_requests, load.input_tokens
        self.unsent, self.timed, self.whole = requests, load.front_end_s > 0.0, prompt + load.output_tokens
        self._send(load.concurrency)
        self.fresh, self.coming = self.fresh + self.coming, 0
        while self.ended < requests:
            if self.timed:
                self._see()
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

    def _send(self, count: int) -> None:
        """The client sends so many more requests, or all that are left."""
        count = min(count, self.unsent)
        self.sent.append((self.clock.turn, count))
        self.unsent -= count
        if self.timed:
            self.arrivals.append((self.clock.now + self.load.front_end_s, count))
        elif self.scheduler.plans_ahead:
            self.coming = count
        else:
            self.fresh += count

    def _see(self) -> None:
        """Requests that the front end is done with get in line."""
        arrivals, seen = self.arrivals, self.planned if self.scheduler.plans_ahead else self.clock.now
        while arrivals and arrivals[0][0] <= seen:
            self.fresh += arrivals.popleft()[1]
        self.timed = bool(arrivals or self.unsent)

    def _wait(self) -> None:
        """Nothing is inside or in line until the next arrival."""
        self.clock.pass_s(self.arrivals[0][0] - self.clock.now)
        self.planned = self.clock.now

    def _finish(self) -> None:
        """Those that have all of their response leave, and the client sends as many more."""
        running, ticks, before = self.running, self.ticks, len(self.running)
        while running and running[0] == ticks:
            running.popleft()
        count = before - len(running)
        self.ended += count
        self.context -= count * (self.whole - 1)
        self.last.append((self.clock.turn, count))
        if self.unsent:
            self._send(count)

    # Long, as ten thousands of evictions go through here.
    def _decode(self, room: int) -> None:
        """Decode until a request ends. Whenever the cache is full the youngest leaves it, and is first in line."""
        running, evicted, each, ticks = self.running, self.evicted, self.scheduler.tokens_of_a_sequence, self.ticks
        if self.begun:
            if room >= len(running):
                self._decode_once(room)
                return
            room = self._evict(room)
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

    def _evict(self, room: int) -> int:
        """The youngest leave until the next decode step fits; the room that there is then."""
        running, each, before = self.running, self.scheduler.tokens_of_a_sequence, len(self.evicted)
        if self.begun and room < len(running):
            self.evicted.append(self.begun)
            room += self.begun + each
            self.begun = 0
        while room < len(running):
            has = self.whole + self.ticks - running.pop()
            self.evicted.append(has)
            self.context -= has - 1
            room += has - 1 + each
        self.evictions += len(self.evicted) - before
        return room

    def _decode_once(self, room: int) -> None:
        """Decode until a request ends, the cache is full, or an arrival is seen."""
        clock, running, arrivals, before = self.clock, self.running, self.arrivals, 0.0
        room = room if room >= len(running) else self._evict(room)
        active, context, in_line = len(running), self.context, self.evicted or self.fresh
        steps = min(running[0] - self.ticks, room // active)
        if not self.timed:
            steps = 1 if self.coming and not in_line else steps  # these are seen after a step
            clock.later([active, context, steps])
        else:
            prices = clock.prices
            if not arrivals:  # and those sent when it is over are not seen before
                whole = prices.stretch_s(active, context, steps)
            elif in_line:
                before = prices.stretch_s(active, context, steps - 1)
                whole = before + prices.stretch_s(active, context + active * (steps - 1), 1)
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
        budget, spare, come = rules.token_budget - beside, float(room), 0
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
                come += self._admit_evicted(budget, room - beside, spare, ends, new)
            elif self.fresh:
                come += self._admit_fresh(budget, room - beside, spare, ends, new)
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

    # Long, as ten thousands of requests that were evicted come back here.
    def _admit_evicted(self, budget: int, room: int, spare: float, ends: int, new: list[int]) -> int:
        """Those that were evicted come in with this step, first in line first, and others after them.

        ``room`` and ``spare`` are left for them, beside what decodes take in this step and what they take later on;
        ``new`` gets what the step takes of their prompts. Returns the tokens that the completed ones read next.
        """
        rules, evicted, whole, own = self.scheduler, self.evicted, self.whole, self.scheduler.admits_with_output
        each, keeps, cut, count, read = rules.tokens_of_a_sequence, own or rules.keeps_for_running, 0, 0, 0
        for has in islice(reversed(evicted), max(rules.max_num_seqs - len(self.running), 0)):
            room -= has + each
            if room < 0:
                break
            if keeps:
                spare -= has + each + own * (whole - has)
                if spare < 0.0:
                    break
            if has > budget:
                cut = has
                break
            budget -= has
            count += 1
        if count:
            back = evicted[: -count - 1 : -1]
            del evicted[-count:]
            end = ends + whole
            self.running.extend([end - has for has in back])
            new += back
            read = sum(back)
        if cut:
            return read + self._cut(cut, budget, ends, new)
        return read if evicted or not budget else read + self._admit_fresh(budget, room, spare, ends, new)

    def _admit_fresh(self, budget: int, room: int, spare: float, ends: int, new: list[int]) -> int:
        """As ``_admit_evicted``, of those that have not been inside."""
        rules, running, prompt, response = self.scheduler, self.running, self.load.input_tokens, self.load.output_tokens
        own, taken = rules.admits_with_output, prompt + rules.tokens_of_a_sequence
        fit = min(room // taken, rules.max_num_seqs - len(running), self.fresh)
        if own or rules.keeps_for_running:
            fit = min(fit, int(spare // (taken + own * response)))
        if fit <= 0:
            return 0
        count = min(fit, budget // prompt)
        if count:
            running.extend((ends + response,) * count)
            self.fresh -= count
            new += (prompt,) * count
        read = count * prompt
        return read + self._cut(prompt, budget - read, ends, new) if count < fit else read

    def _cut(self, size: int, budget: int, ends: int, new: list[int]) -> int:
        """The next in line has room, and a longer prompt than the step still takes: it is cut, or waits to be alone."""
        chunked = self.scheduler.chunked
        if not (budget if chunked else ends < self.ticks and not new):
            return 0
        if self.evicted:
            self.evicted.pop()
        else:
            self.fresh -= 1
        if chunked:
            new.append(budget)
            self.begun, self.cached = size, budget
            return 0
        new.append(size)
        self.running.append(ends + self.whole - size)
        return size
