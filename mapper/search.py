"""find_plan(facts) -> Result: the mapper's one public verb."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mapper.bounds import prune_beyond
from mapper.greedy import greedy
from mapper.infeasible import explain_infeasible
from mapper.instance import Instance, make_instance
from mapper.problem import make_problem, named_partition
from mapper.result import OPTIMAL_GAP, Result, RunnerUp
from mapper.solver import Solution, solve
from mapper.variables import Choice
from profiles.errors import InputError
from simulator.plan import Plan, Pool, RolePlan, placement_name
from simulator.simulate import simulate

if TYPE_CHECKING:
    from mapper.pins import Pin
    from mapper.problem import Problem, Sets
    from simulator.facts import Facts

NAMED_PLACEMENTS = ("colocate", "split", "standalone")


def find_plan(
    facts: Facts, *, placement: str = "any", even: bool = False, seed: int = 0, time_limit_s: float = 60.0,
    runners_up: bool = True, pins: tuple[Pin, ...] = (),
) -> Result:  # fmt: skip
    """The plan with the shortest iteration, with a proven bound.

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
        Also find the best plan of every other named placement, and the best of all other placements.
    pins
        Degrees and pool sizes that are fixed for some roles.

    Raises
    ------
    InfeasibleError
        Nothing fits; says which role needs what and the fewest GPUs that would do.
    """
    began = time.perf_counter()
    problem = make_problem(facts, placement, even, pins)
    instance = make_instance(problem)
    choice, solution = best_choice(instance, seed, time_limit_s)
    if choice is None:
        raise explain_infeasible(problem)
    plan = build_plan(instance, choice, facts)
    timeline = simulate(plan, facts)
    drift = abs(timeline.iteration_s - solution.objective_ticks * instance.tick_s)
    assert drift <= instance.rounding_s + 1e-9 * timeline.iteration_s, f"solver and simulator differ by {drift} s"
    bound = min(max(solution.bound_ticks * instance.tick_s - instance.rounding_s, 0.0), timeline.iteration_s)
    gap = (timeline.iteration_s - bound) / timeline.iteration_s
    deadline = began + time_limit_s
    others = _runners_up(instance, problem, choice, seed, deadline) if runners_up else ()
    return Result(
        status="optimal" if gap <= OPTIMAL_GAP else "feasible", plan=plan, timeline=timeline, bound_s=bound, gap=gap,
        seed=seed, seconds=time.perf_counter() - began,
        num_priced=sum(t.num_priced for t in instance.tables.values()), num_candidates=instance.num_candidates,
        runners_up=others,
    )  # fmt: skip


def best_choice(x: Instance, seed: int, time_limit_s: float) -> tuple[Choice | None, Solution]:
    """The best choice of an instance: a quick one first, what cannot beat it pruned away, then CP-SAT to the proof."""
    start, limit = greedy(x)
    if start is None:
        solution = solve(x, seed=seed, time_limit_s=time_limit_s)
        return solution.choice, solution
    pruned, kept = prune_beyond(x, limit)
    back = {role: {int(row): i for i, row in enumerate(rows)} for role, rows in kept.items()}
    inside = Choice(start.pools, {role: back[role][row] for role, row in start.rows.items()})
    solution = solve(pruned, seed=seed, time_limit_s=time_limit_s, start=inside, start_ticks=limit)
    assert solution.choice is not None, "the quick choice survives its own pruning"
    return Choice(solution.choice.pools, {r: int(kept[r][i]) for r, i in solution.choice.rows.items()}), solution


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
