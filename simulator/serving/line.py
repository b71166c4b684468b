"""Requests that are all alike, those inside an engine and those in line: who comes in, and who leaves a full cache.

All of them have the same prompt and response, so one that runs is no more than the tick at which it ends, and one that
was evicted no more than the tokens that it has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.serving.requests import Clock
    from simulator.serving.run import Load, Scheduler


@dataclass(eq=False, slots=True)
class Line:
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

    def send(self, count: int) -> None:
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

    def see(self) -> None:
        """Requests that the front end is done with get in line."""
        arrivals, seen = self.arrivals, self.planned if self.scheduler.plans_ahead else self.clock.now
        while arrivals and arrivals[0][0] <= seen:
            self.fresh += arrivals.popleft()[1]
        self.timed = bool(arrivals or self.unsent)

    def evict(self, room: int) -> int:
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

    # Long, as ten thousands of requests that were evicted come back here.
    def admit_evicted(self, budget: int, room: int, spare: float, ends: int, new: list[int]) -> int:
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
        return read if evicted or not budget else read + self.admit_fresh(budget, room, spare, ends, new)

    def admit_fresh(self, budget: int, room: int, spare: float, ends: int, new: list[int]) -> int:
        """As ``admit_evicted``, of those that have not been inside."""
        rules, running, prompt, response = self.scheduler, self.running, self.load.input_tokens, self.load.output_tokens
        own, taken, slots = (
            rules.admits_with_output,
            prompt + rules.tokens_of_a_sequence,
            rules.max_num_seqs - len(running),
        )
        fit = room // taken
        fit = fit if fit < self.fresh else self.fresh
        fit = fit if fit < slots else slots
        if own or rules.keeps_for_running:
            fit = min(fit, int(spare // (taken + own * response)))
        if fit <= 0:
            return 0
        count = budget // prompt
        count = count if count < fit else fit
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
