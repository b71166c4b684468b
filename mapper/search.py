"""find_plan(facts) -> Result: the mapper's one public verb."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mapper.best import best_choice as best_choice
from mapper.best import gpus_of
from mapper.budgets import Found, Search, fewest_gpus_within, least_gpu_time
from mapper.goal import Objective
from mapper.hint import choice_of_plan
from mapper.infeasible import explain_infeasible
from mapper.instance import Instance, make_instance
from mapper.problem import make_problem, named_partition
from mapper.result import OPTIMAL_GAP, Result, RunnerUp
from profiles.errors import InfeasibleError, InputError
from simulator.plan import Plan, Pool, RolePlan, placement_name
from simulator.simulate import simulate

if TYPE_CHECKING:
    from mapper.pins import AnyPin
    from mapper.problem import Problem, Sets
    from mapper.variables import Choice
    from simulator.facts import Facts

NAMED_PLACEMENTS = ("colocate", "split", "standalone")
TIME = Objective()


def find_plan(
    facts: Facts, *, placement: str = "any", even: bool = False, seed: int = 0, time_limit_s: float = 60.0,
    runners_up: bool = True, pins: tuple[AnyPin, ...] = (), objective: Objective = TIME, hint: Plan | None = None,
) -> Result:  # fmt: skip
    """The plan with the shortest iteration, or the best under another objective, with a proven bound.

    Parameters
    ----------
    facts
        The job and what is known about its devices, models and engines.
    placement
        ``any``, or ``colocate``, ``split``, ``standalone`` to search allocations and layouts of that one alone.
    even
        Equal halves, for ``split``.
    seed, time_limit_s
        Of the search; the runners-up share what is left of the limit. The same input and seed give the same plan
        when the search ends before its limit.
    runners_up
        Also find the fastest plan of every other named placement, and of all other placements, on as many GPUs.
    pins
        Degrees and pool sizes that are fixed for some roles, who shares, nodes that stay free.
    objective
        What to minimise.
    hint
        A plan to start from; one that this search does not contain is left aside with a note.

    Raises
    ------
    InfeasibleError
        Nothing fits; says which role needs what and the fewest GPUs that would do, or which pins conflict.
    """
    began = time.perf_counter()
    problem = make_problem(facts, placement, even, pins)
    instance = make_instance(problem)
    known, notes = _known(instance, hint)
    deadline = began + time_limit_s
    found = _search(instance, objective, Search(instance, seed, deadline), time_limit_s, known)
    if found is None:
        raise _nothing_found(problem, instance, objective, seed, deadline)
    plan = build_plan(instance, found.choice, facts)
    timeline = simulate(plan, facts)
    drift = abs(timeline.iteration_s - found.ticks * instance.tick_s)
    assert drift <= instance.rounding_s + 1e-9 * timeline.iteration_s, f"solver and simulator differ by {drift} s"
    bound = min(max(found.bound_ticks * instance.tick_s - instance.rounding_s, 0.0), timeline.iteration_s)
    value = objective.value(timeline.iteration_s, plan.num_gpus)
    least = min(_least_value(instance, objective, found, bound), value)
    gap = max((value - least) / value, _tail(objective, timeline.iteration_s, bound))
    on_as_many = instance if objective.goal == "time" else replace(instance, num_gpus=plan.num_gpus)
    others = _runners_up(on_as_many, problem, found.choice, seed, deadline) if runners_up else ()
    return Result(
        status="optimal" if gap <= OPTIMAL_GAP else "feasible", plan=plan, timeline=timeline, bound_s=bound, gap=gap,
        seed=seed, seconds=time.perf_counter() - began,
        num_priced=sum(t.num_priced for t in instance.tables.values()), num_candidates=instance.num_candidates,
        runners_up=others, objective=objective, value_bound=least, notes=notes,
    )  # fmt: skip


def _search(
    x: Instance, objective: Objective, search: Search, time_limit_s: float, known: Choice | None
) -> Found | None:
    """The best choice under the objective; ``None`` if there is none."""
    if objective.goal in ("throughput_per_gpu", "cost"):
        return least_gpu_time(search, known)
    if objective.goal == "gpus":
        return fewest_gpus_within(search, _target_ticks(x, objective), known)
    choice, solution = best_choice(x, search.seed, time_limit_s, known)
    bound = solution.bound_ticks
    return None if choice is None else Found(choice, solution.objective_ticks, bound, bound, bound)


def _target_ticks(x: Instance, objective: Objective) -> int:
    """Most ticks of an iteration that ends in time whatever its rounding."""
    if objective.target_iteration_s is None:
        raise InputError("the objective gpus needs a target_iteration_s")
    return math.floor((objective.target_iteration_s - x.rounding_s) / x.tick_s)


def _least_value(x: Instance, objective: Objective, found: Found, bound_s: float) -> float:
    """A value that no plan is below, rounding of durations included."""
    if objective.goal == "time":
        return bound_s
    if objective.goal == "gpus":
        return float(found.least)
    surely = max(1.0 - x.rounding_s / max(found.floor_ticks * x.tick_s, x.tick_s), 0.0)
    return objective.value(found.least * x.tick_s * surely, 1)


def _tail(objective: Objective, iteration_s: float, bound_s: float) -> float:
    """For the fewest GPUs, the gap of the time on those; it is not proven the best while either gap is open."""
    return (iteration_s - bound_s) / iteration_s if objective.goal == "gpus" else 0.0


def _known(x: Instance, hint: Plan | None) -> tuple[Choice | None, tuple[str, ...]]:
    """The choice that a hint stands for, or none and a note of why."""
    if hint is None:
        return None, ()
    choice = choice_of_plan(x, hint)
    return (None, (f"the hint is left aside: {choice}",)) if isinstance(choice, str) else (choice, ())


def _nothing_found(problem: Problem, x: Instance, objective: Objective, seed: int, deadline: float) -> InputError:
    """Why there is no plan: the target is too short, or nothing fits."""
    if objective.goal != "gpus":
        return explain_infeasible(problem)
    choice, bound = Search(x, seed, max(deadline, time.perf_counter() + 1.0)).at(x.num_gpus, None)
    if choice is None:
        return explain_infeasible(problem)
    fastest_s = simulate(build_plan(x, choice, problem.facts), problem.facts).iteration_s
    return InfeasibleError(
        f"no plan ends an iteration within {objective.target_iteration_s:,g} s: the fastest on all "
        f"{problem.num_gpus:,} GPUs takes {fastest_s:,.2f} s (on {gpus_of(choice):,}), and none less than "
        f"{bound * x.tick_s:,.2f} s; give a longer target_iteration_s or more nodes"
    )


def build_plan(x: Instance, choice: Choice, facts: Facts) -> Plan:
    """Put the chosen pools on GPUs (whole nodes first, then slices by size, so that slices never straddle a node)."""
    order = {roles: min(facts.dataflow.roles.index(r) for r in roles) for roles, _ in choice.pools}
    pools = sorted(choice.pools, key=lambda pool: order[pool[0]])
    first, at = {}, 0
    for roles, n in sorted(pools, key=lambda pool: (-pool[1], order[pool[0]])):
        first[roles], at = at, at + n
    names = {roles: _letter(i) for i, (roles, _) in enumerate(pools)}
    entries = []
    for roles, _ in pools:
        for role in roles:
            training, inference, generation = x.tables[role].records(choice.rows[role])
            entries.append(
                RolePlan(role=role, pool=names[roles], training=training, inference=inference, generation=generation)
            )
    return Plan(
        algorithm=facts.algorithm,
        placement=placement_name(tuple(roles for roles, _ in pools)),
        pools=tuple(
            Pool(name=names[roles], device=facts.group.device, first_gpu=first[roles], num_gpus=n, roles=roles)
            for roles, n in pools
        ),
        roles=tuple(sorted(entries, key=lambda e: facts.dataflow.roles.index(e.role))),
    )


def _runners_up(x: Instance, problem: Problem, winner: Choice, seed: int, deadline: float) -> tuple[RunnerUp, ...]:
    """The best plan of each other named placement and of all other placements, fastest first, each placement once.

    They share what the winner left of the time limit; each has a second at least. A placement for which nothing is
    known when its time is up is left out.
    """
    won = tuple(roles for roles, _ in winner.pools)
    groups: list[tuple[Sets, ...]] = []
    for name in NAMED_PLACEMENTS:
        try:
            groups.append((named_partition(problem.facts.algorithm, problem.roles, name),))
        except InputError:  # these roles have no split
            continue
    groups.append(tuple(p for p in x.partitions if set(p) != set(won)))
    found: dict[frozenset[tuple[str, ...]], RunnerUp] = {}
    for partitions in groups:
        inside = tuple(p for p in partitions if p in x.partitions and set(p) != set(won))
        if not inside:
            continue
        sizes = {roles: x.sizes[roles] for p in inside for roles in p}
        left_s = max(1.0, deadline - time.perf_counter())
        try:
            choice, _ = best_choice(replace(x, partitions=inside, sizes=sizes), seed, left_s)
        except InputError:  # time is up and nothing was found
            continue
        if choice is not None:
            plan = build_plan(x, choice, problem.facts)
            key = frozenset(roles for roles, _ in choice.pools)
            found[key] = RunnerUp(plan.placement, simulate(plan, problem.facts).iteration_s, plan)
    return tuple(sorted(found.values(), key=lambda r: (r.iteration_s, r.placement)))


def _letter(i: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]
