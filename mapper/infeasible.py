"""When nothing fits: which role, what it needs, what there is, and how many GPUs would do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import role_table
from mapper.greedy import greedy
from mapper.instance import make_instance
from mapper.problem import pool_sizes
from profiles.errors import InfeasibleError
from profiles.units import GIB

if TYPE_CHECKING:
    from mapper.problem import Problem

MAX_NODES = 1024
"""Up to this many nodes the fewest GPUs are looked for."""


def explain_infeasible(problem: Problem) -> InfeasibleError:
    """The error to raise: the hungriest role on all GPUs, memory needed and there, the fewest GPUs that would do."""
    if (blamed := _blamed_pin(problem)) is not None:
        return blamed
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


def _blamed_pin(problem: Problem) -> InfeasibleError | None:
    """The error that names the pin that nothing satisfies, or the pins together; ``None`` if it is not their fault."""
    if not problem.pins:
        return None
    group = f"{problem.num_gpus} x {problem.facts.group.device}"
    for pin in problem.pins:
        free = replace(problem, pins=tuple(p for p in problem.pins if p is not pin))
        if len(role_table(problem, pin.role)) or not len(role_table(free, pin.role)):
            continue
        need = smallest_need_bytes(problem, pin.role, problem.sizes)
        limit = (
            f"it needs at least {need / GIB:.1f} GiB per GPU, there are "
            f"{problem.facts.memory_capacity_bytes / GIB:.1f} GiB"
            if need < float("inf")
            else f"no pool of {', '.join(map(str, problem.sizes))} GPUs divides into these degrees with this model's "
            f"heads and layers, the samples of an update and {problem.facts.training.name}"
        )
        return InfeasibleError(f"no plan fits the pin of {pin} on {group}: {limit}; loosen the pin")
    if greedy(make_instance(replace(problem, pins=())))[0] is None:
        return None
    pins = "; ".join(str(pin) for pin in problem.pins)
    return InfeasibleError(f"no plan fits all pins together on {group} ({pins}); without them one does")


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
