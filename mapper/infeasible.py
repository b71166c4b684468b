"""When nothing fits: which role, what it needs, what there is, how many GPUs would do; or which pins conflict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import role_table
from mapper.greedy import greedy
from mapper.instance import make_instance
from mapper.pins import joined, parts_of, pin_of
from mapper.problem import pool_sizes, with_pins
from mapper.sharing import Share, Spare
from mapper.solver import solve
from profiles.errors import InfeasibleError, InputError
from profiles.units import GIB

if TYPE_CHECKING:
    from mapper.candidates import RoleTable
    from mapper.pins import AnyPin
    from mapper.problem import Problem

MAX_NODES = 1024
"""Up to this many nodes the fewest GPUs are looked for."""

CHECK_S = 10.0
"""Seconds for the solver to decide whether some pins leave a plan."""


def explain_infeasible(problem: Problem) -> InfeasibleError:
    """The error to raise: the hungriest role on all GPUs, memory needed and there, the fewest GPUs that would do."""
    if (blamed := _blamed_pins(problem)) is not None:
        return blamed
    problem = with_pins(problem, ())
    facts = problem.facts
    needs = {role: smallest_need_bytes(problem, role) for role in problem.roles}
    role = max(needs, key=lambda r: needs[r])
    capacity = facts.memory_capacity_bytes
    fewest = fewest_gpus(problem)
    there = f"there are {capacity / GIB:.1f} GiB per GPU on {problem.num_gpus} x {facts.group.device}"
    if needs[role] > capacity:
        what = (
            f"{role} ({facts.roles[role].shape.name}) alone needs at least {needs[role] / GIB:.1f} GiB per GPU; {there}"
        )
    else:
        total = sum(needs.values())
        what = (
            f"each role fits alone, but not all together: the hungriest, {role} ({facts.roles[role].shape.name}), "
            f"needs at least {needs[role] / GIB:.1f} GiB per GPU with all GPUs to itself, the roles one by one "
            f"{total / GIB:.1f} GiB in sum; {there}"
        )
    next_step = (
        f"the fewest GPUs that would do: {fewest}" if fewest else f"not even {MAX_NODES} nodes of this kind would do"
    )
    return InfeasibleError(f"no plan fits: {what}; {next_step}", fewest_gpus=fewest)


def _blamed_pins(problem: Problem) -> InfeasibleError | None:
    """The error that names the pin that nothing satisfies, or those that conflict; ``None`` if none is at fault."""
    if not problem.pins or not _feasible(with_pins(problem, ()), {}):
        return None
    parts = conflict(problem)
    group = f"{problem.facts.group.num_gpus:,} x {problem.facts.group.device}"
    asked = "" if problem.placement == "any" else f" with placement {problem.placement}"
    if len(parts) > 1:
        named = f"these {len(parts)} conflict: {'; '.join(str(part) for part in parts)}"
        return InfeasibleError(f"no plan fits all pins together on {group}{asked}; {named}; loosen one of them")
    why = _limit_of(problem, parts[0])
    return InfeasibleError(f"no plan fits the pin of {parts[0]} on {group}{asked}: {why}; loosen the pin")


def conflict(problem: Problem) -> tuple[AnyPin, ...]:
    """A minimal set of single pins that no plan satisfies: without any one of them, the others leave a plan.

    The deletion filter: one after another is left out, for good if nothing fits even so. Where a check is not
    decided in its time the pin is kept, so that what is named does conflict but may then not be minimal.
    """
    priced: dict[tuple[object, ...], RoleTable] = {}
    kept = [part for pin in problem.pins for part in parts_of(pin)]
    for part in tuple(kept):
        others = tuple(other for other in kept if other is not part)
        if not _feasible(with_pins(problem, joined(others)), priced):
            kept = list(others)
    return tuple(kept)


def _feasible(problem: Problem, priced: dict[tuple[object, ...], RoleTable]) -> bool:
    """Whether some plan satisfies the pins (or none was ruled out in time); tables are priced once per role's pin."""
    tables = {}
    for role in problem.roles:
        key = (role, problem.sizes, str(pin_of(problem.pins, role)), pin_of(problem.pins, role).min_gpus_per_stage)
        if key not in priced:
            priced[key] = role_table(problem, role)
        tables[role] = priced[key]
    x = make_instance(problem, priced=tables)
    if greedy(x)[0] is not None:
        return True
    try:
        return solve(x, seed=0, time_limit_s=CHECK_S).choice is not None
    except InputError:  # not decided in time
        return True


def _limit_of(problem: Problem, part: AnyPin) -> str:
    """What a single pin runs into."""
    if isinstance(part, Spare):
        return (
            f"it leaves {problem.num_gpus:,} GPUs, the fewest that would do are {fewest_gpus(with_pins(problem, ()))}"
        )
    if isinstance(part, Share):
        return "no placement that agrees with it fits"
    alone = with_pins(problem, (part,))
    if len(role_table(alone, part.role)):
        return "the role fits so by itself, but not beside the others"
    need = smallest_need_bytes(alone, part.role, alone.sizes)
    if need < float("inf"):
        capacity = problem.facts.memory_capacity_bytes
        return f"it needs at least {need / GIB:.1f} GiB per GPU, there are {capacity / GIB:.1f} GiB"
    return (
        f"no pool of {', '.join(map(str, alone.sizes))} GPUs divides into these degrees with this model's "
        f"heads and layers, the samples of an update and {problem.facts.training.name}"
    )


def smallest_need_bytes(problem: Problem, role: str, sizes: tuple[int, ...] = ()) -> float:
    """Memory per GPU that ``role`` needs at least with all the GPUs, or a pool of ``sizes``, to itself.

    The reserve is included; infinite if no layout spreads over them.
    """
    facts = problem.facts
    roomy = replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=2**60)))
    table = role_table(replace(problem, facts=roomy, sizes=sizes or problem.sizes[-1:]), role)
    if not len(table):
        return float("inf")
    return float(np.min(table.resident_bytes + table.transient_bytes)) + facts.generation.memory_reserve_bytes


def fewest_gpus(problem: Problem) -> int | None:
    """The fewest GPUs of this kind on which some allowed placement fits, or ``None``; doubles nodes, then bisects."""
    low, high = 0, problem.facts.group.nodes
    while not _fits(problem, high):
        low, high = high, high * 2
        if high > MAX_NODES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(problem, middle) else (middle, high)
    return high * problem.facts.group.gpus_per_node


def _fits(problem: Problem, nodes: int) -> bool:
    group = replace(problem.facts.group, nodes=nodes)
    sizes = pool_sizes(nodes, group.gpus_per_node)
    larger = replace(problem, facts=replace(problem.facts, group=group), sizes=sizes)
    return greedy(make_instance(larger))[0] is not None
