"""The best plans of other placements, to stand beside the winner: a proof where that is cheap, else a bound.

What is asked of them is how much slower their placements are, so where much is left to search, prices of memory and
GPUs say what they are at least (``multipliers``), and the solver is spared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mapper.deadline import TimeUpError
from mapper.execution_mode import GENERATOR
from mapper.problem import named_partition, sets_of
from mapper.result import OPTIMAL_GAP, RunnerUp
from mapper.search.best import best_choice
from mapper.search.place import build_plan
from mapper.search.proof import best_as_priced
from profiles.errors import InputError
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from mapper.deadline import Deadline
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Placement, Problem
    from mapper.request import SearchRequest

NAMED_PLACEMENTS = ("colocate", "split", "standalone")

MOST_ROWS = 500
"""Rows of all roles up to which the solver is asked whether a placement has anything faster: that takes below 1 s."""

LEAST_S = 1.0
"""Seconds that a placement gets at least where the time limit is not up."""

RIVAL_S = 10.0
"""Seconds that the solver gets at most for a placement."""


def runners_up(
    instance: Instance, problem: Problem, winner: Choice, request: SearchRequest, deadline: Deadline
) -> tuple[RunnerUp, ...]:
    """The best plan of each other named placement and of all other placements, fastest first, each placement once.

    Each is the best there is or has a ``bound_s``. When time is up it is the quick choice of its placement, and a
    placement for which nothing is known then is left out.
    """
    known = {frozenset(group for group, _ in winner.pools)}
    found: list[RunnerUp] = []
    for placements in [*_named_families(instance, problem), instance.partitions]:
        inside = tuple(p for p in placements if frozenset(p) not in known)
        if not inside:
            continue
        few = replace(instance, partitions=inside, sizes={group: instance.sizes[group] for p in inside for group in p})
        left_s = 0.0 if deadline.is_over() else min(max(deadline.left_s, LEAST_S), RIVAL_S)
        try:
            choice, bound_ticks = _best(few, request, left_s)
        except TimeUpError:
            continue
        if choice is not None:
            found.append(as_rival(instance, problem, choice, bound_ticks))
            known |= {frozenset(group for group, _ in choice.pools)}
    return tuple(sorted(found, key=lambda r: (r.iteration_s, r.placement)))


def as_rival(instance: Instance, problem: Problem, choice: Choice, bound_ticks: int | None = None) -> RunnerUp:
    """A choice as a plan; ``bound_ticks``: what no other choice of those that it was chosen from is below."""
    plan = build_plan(instance, choice, problem)
    timeline = simulate(plan, problem.facts)
    iteration_s = timeline.iteration_s
    bound_s = iteration_s if bound_ticks is None else bound_ticks * instance.tick_s - instance.rounding_s
    least_s = bound_s if bound_s < iteration_s * (1 - OPTIMAL_GAP) else None
    return RunnerUp(plan.placement, iteration_s, plan, least_s, timeline)


def _best(instance: Instance, request: SearchRequest, left_s: float) -> tuple[Choice | None, int]:
    """The best choice that is found, and ticks that none is below."""
    if instance.neighbours is not None or instance.sync is not None:  # durations are not those of single rows
        choice, solution = best_choice(instance, request.seed, left_s, workers=request.workers)
    else:
        choice, solution = best_as_priced(instance, request.seed, left_s, workers=request.workers, most_rows=MOST_ROWS)
    return choice, solution.bound_ticks


def _named_families(instance: Instance, problem: Problem) -> list[tuple[Placement, ...]]:
    """The placements of each name, on whichever kinds of GPU."""
    families = []
    for name in NAMED_PLACEMENTS:
        try:
            sets = named_partition(problem.facts.algorithm, problem.facts.dataflow.roles, name)
        except InputError:  # these roles have no split
            continue
        whole = {*sets, (GENERATOR,)} if problem.mode.dedicated_rollout else {*sets}
        families.append(tuple(p for p in instance.partitions if set(sets_of(p)) == whole))
    return families
