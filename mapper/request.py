"""What is asked of a search, whole: one record, so that no caller can leave a part of the job out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mapper.execution_mode import SYNC
from mapper.objective import Objective
from mapper.problem import make_problem
from mapper.search_options import USUAL
from profiles.errors import InputError

if TYPE_CHECKING:
    from mapper.execution_mode import ExecutionMode
    from mapper.pins import AnyPin
    from mapper.problem import Problem
    from mapper.search_options import SearchOptions
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

TIME = Objective()


@dataclass(frozen=True)
class SearchRequest:
    """One search. A job makes it (``hybridmap.job.load.Job.request``); what a command adds it puts with ``replace``.

    Parameters
    ----------
    facts
        The job and what is known about its devices, models and engines.
    pins
        Degrees and pool sizes that are fixed for some roles, who shares, nodes that stay free.
    modes
        Where the actor may generate, and when: each is searched, and the best of all is returned.
    space
        Layouts that are searched beside the usual ones.
    objective
        What to minimise.
    placement
        ``any``, or ``colocate``, ``split``, ``standalone`` to search allocations and layouts of that one alone.
    even
        Equal halves, for ``split``.
    hint
        A plan to start from; one that the search does not contain is ignored with a note.
    seed, time_limit_s
        Of the search; the runners-up share what is left of the limit. The same input and seed give the same plan
        when the search ends before its limit.
    runners_up
        Also find the fastest plan of every other named placement, and of all other placements, on as many GPUs.
    top
        How many plans to show in all: the best, and the best of those that differ in something that matters.
    workers
        Threads of the solver; the plan is the same for any number of them.
    """

    facts: Facts
    pins: tuple[AnyPin, ...] = ()
    modes: tuple[ExecutionMode, ...] = (SYNC,)
    options: SearchOptions = USUAL
    objective: Objective = TIME
    placement: str = "any"
    even: bool = False
    hint: Plan | None = None
    seed: int = 0
    time_limit_s: float = 60.0
    runners_up: bool = True
    top: int = 1
    workers: int = 1

    @property
    def mode(self) -> ExecutionMode:
        """The mode, where only one makes sense; ``InputError`` if several are allowed."""
        first, *others = self.modes
        if others:
            allowed = "; ".join(map(str, (first, *others)))
            raise InputError(f"schedule: this shows one schedule, and the job allows {allowed}; name one")
        return first

    @property
    def one_length(self) -> SearchRequest:
        """The request itself, where engines draft one number of tokens; ``InputError`` where a plan is to choose it."""
        lengths = () if self.facts.speculation is None else self.facts.speculation.lengths
        if lengths:
            allowed = ", ".join(map(str, lengths))
            raise InputError(f"speculation.draft_tokens: this shows one length of draft, and the job lists {allowed}")
        return self

    def fastest(self) -> SearchRequest:
        """The same search for the fastest plan alone, plain or not."""
        return replace(self, options=replace(self.options, prefer_plain=None))

    def problem(self, mode: ExecutionMode) -> Problem:
        """The problem of one of the modes."""
        problem = make_problem(self.facts, self.placement, self.even, self.pins, mode, self.options)
        return replace(problem, every_degree=self.top > 1)
