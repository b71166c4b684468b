"""When nothing fits: which role, what it needs, what there is, how many GPUs would do; or which pins conflict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.listing import bounding_tables
from mapper.deadline import NEVER, TimeUpError
from mapper.execution_mode import GENERATOR
from mapper.model.instance import make_instance
from mapper.model.solver import solve
from mapper.pins import Share, Spare, joined, parts_of, pin_of
from mapper.price_families import with_memory
from mapper.problem import pool_sizes, with_pins
from mapper.search.incumbent import greedy
from profiles.errors import InfeasibleError
from profiles.units import GIB
from simulator.legality import stages_fault, tensor_fault

if TYPE_CHECKING:
    from mapper.candidates.table import RoleTable
    from mapper.deadline import Deadline
    from mapper.model.instance import Instance
    from mapper.pins import AnyPin, Pin
    from mapper.problem import Problem
    from simulator.facts import Facts

MAX_NODES = 1024
"""Up to this many nodes the fewest GPUs are looked for."""

CHECK_S = 10.0
"""Seconds for the solver to decide whether some pins leave a plan."""

LEAST_S = 0.05
"""Seconds that it gets at least when time is nearly up."""


def explain_infeasible(problem: Problem, deadline: Deadline = NEVER) -> InfeasibleError:
    """The error to raise: the hungriest role on all GPUs, memory needed and there, the fewest GPUs that would do.

    Or that nothing fits and no more, where ``deadline`` is over before the rest is known.
    """
    try:
        return _blamed_pins(problem, deadline) or _blamed_memory(with_pins(problem, ()), deadline)
    except TimeUpError:
        pins = " with these pins" if problem.pins else ""
        return InfeasibleError(
            f"no plan fits on {cluster_of(problem)}{pins}; time was up before it was known why, and on how many GPUs "
            "one would: give a longer time limit (--time-limit) to be told"
        )


def _blamed_memory(problem: Problem, deadline: Deadline) -> InfeasibleError:
    """The error that names the hungriest role."""
    facts = problem.facts
    needs = {role: smallest_need_bytes(problem, role, deadline=deadline) for role in problem.roles}
    role = max(needs, key=lambda r: needs[r])
    capacity = max(facts.on(device_type).memory_usable_bytes for device_type in facts.device_types)
    fewest = fewest_gpus(problem, deadline, too_few=facts.group.nodes)
    there = f"there are {_usable_text(facts)} per GPU on {cluster_of(problem)}"
    if needs[role] > capacity:
        what = f"{role} ({name_of(facts, role)}) alone needs at least {needs[role] / GIB:.1f} GiB per GPU; {there}"
    else:
        total = sum(needs.values())
        what = (
            f"each role fits alone, but not all together: the hungriest, {role} ({name_of(facts, role)}), "
            f"needs at least {needs[role] / GIB:.1f} GiB per GPU with all GPUs to itself, the roles one by one "
            f"{total / GIB:.1f} GiB in sum; {there}"
        )
    next_step = (
        f"the fewest GPUs{_of_first(facts)} that would do: {fewest}"
        if fewest
        else f"not even {MAX_NODES} nodes{_of_first(facts)} would do"
    )
    return InfeasibleError(f"no plan fits: {what}; {next_step}", fewest_gpus=fewest)


def _blamed_pins(problem: Problem, deadline: Deadline) -> InfeasibleError | None:
    """The error that names the pin that nothing satisfies, or those that conflict; ``None`` if none is at fault."""
    if not problem.pins or not _feasible(with_pins(problem, ()), {}, deadline):
        return None
    parts = conflict(problem, deadline)
    group = " + ".join(f"{problem.facts.on(k).group.num_gpus:,} x {k}" for k in problem.facts.device_types)
    asked = "" if problem.placement == "any" else f" with placement {problem.placement}"
    if len(parts) > 1:
        named = f"these {len(parts)} conflict: {'; '.join(str(part) for part in parts)}"
        return InfeasibleError(f"no plan fits all pins together on {group}{asked}; {named}; loosen one of them")
    why = _limit_of(problem, parts[0], deadline)
    return InfeasibleError(f"no plan fits the pin of {parts[0]} on {group}{asked}: {why}; loosen the pin")


def conflict(problem: Problem, deadline: Deadline = NEVER) -> tuple[AnyPin, ...]:
    """A minimal set of single pins that no plan satisfies: without any one of them, the others leave a plan.

    The deletion filter: one after another is left out, for good if nothing fits even so. Where a check is not
    decided in its time the pin is kept, so that what is named does conflict but may then not be minimal.
    """
    priced: dict[tuple[object, ...], RoleTable] = {}
    kept = [part for pin in problem.pins for part in parts_of(pin)]
    for part in tuple(kept):
        others = tuple(other for other in kept if other is not part)
        if not _feasible(with_pins(problem, joined(others)), priced, deadline):
            kept = list(others)
    return tuple(kept)


def _feasible(problem: Problem, priced: dict[tuple[object, ...], RoleTable], deadline: Deadline) -> bool:
    """Whether some plan satisfies the pins (or none was ruled out in time); tables are priced once per role's pin."""
    tables = {}
    for role in problem.roles:
        sizes = tuple(problem.sizes.items())
        key = (role, sizes, str(pin_of(problem.pins, role)), pin_of(problem.pins, role).min_gpus_per_stage)
        if key not in priced:
            priced[key] = _whole_table(problem, role, deadline)
        tables[role] = priced[key]
    x = make_instance(problem, priced=tables)
    if greedy(x)[0] is not None:
        return True
    try:
        return solve(x, seed=0, time_limit_s=max(min(CHECK_S, deadline.left_s), LEAST_S)).choice is not None
    except TimeUpError:  # not decided
        return True


def _whole_table(problem: Problem, role: str, deadline: Deadline) -> RoleTable:
    """Every row of a role; ``TimeUpError`` if there is no time for all."""
    table = bounding_tables(problem, (role,), deadline=deadline)[role]
    if table.unpriced is not None:
        raise TimeUpError
    return table.listed()


def _whole_instance(problem: Problem, deadline: Deadline) -> Instance:
    """Every candidate; ``TimeUpError`` if there is no time for all."""
    x = make_instance(problem, deadline=deadline)
    if x.unpriced_ticks is not None:
        raise TimeUpError
    return x


def _limit_of(problem: Problem, part: AnyPin, deadline: Deadline) -> str:
    """What a single pin runs into."""
    if isinstance(part, Spare):
        fewest = fewest_gpus(with_pins(problem, ()), deadline)
        return f"it leaves {problem.num_gpus:,} GPUs, the fewest that would do are {fewest}"
    if isinstance(part, Share):
        return "no placement that agrees with it fits"
    alone = with_pins(problem, (part,))
    if len(_whole_table(alone, part.role, deadline)):
        return "the role fits so by itself, but not beside the others"
    need = smallest_need_bytes(alone, part.role, every_size=True, deadline=deadline)
    if need < float("inf"):
        return f"it needs at least {need / GIB:.1f} GiB per GPU, there are {_usable_text(problem.facts)}"
    if fault := _fault_of(problem.facts, part):
        return fault
    sizes = sorted({n for of_kind in alone.sizes.values() for n in of_kind})
    return (
        f"no pool of {', '.join(map(str, sizes))} GPUs divides into these degrees with this model's "
        f"heads and layers, the samples of an update and {problem.facts.training.name}"
    )


def _usable_text(facts: Facts) -> str:
    """What a plan may fill of the roomiest GPU, and what a headroom leaves of what it sees."""
    roomiest = max((facts.on(kind) for kind in facts.device_types), key=lambda on: on.memory_usable_bytes)
    usable, seen = roomiest.memory_usable_bytes, roomiest.memory_capacity_bytes
    return f"{usable / GIB:.1f} GiB" + (f" usable, {seen / GIB:.1f} seen," if usable < seen else "")


def _fault_of(facts: Facts, pin: Pin) -> str | None:
    """Why the model has none of the pinned tensor or pipeline degrees, if that is so."""
    shape = facts.roles["actor" if pin.role == GENERATOR else pin.role].shape
    for fixed in (pin.training, pin.inference, pin.generation):
        for name, value in fixed.items():
            values = value if isinstance(value, tuple) else (value,)
            degrees = [v for v in values if name in ("tp", "pp") and isinstance(v, int)]
            faults = [tensor_fault(shape, n) if name == "tp" else stages_fault(shape.num_layers, n) for n in degrees]
            if faults and all(faults):
                return faults[0]
    return None


def smallest_need_bytes(problem: Problem, role: str, every_size: bool = False, deadline: Deadline = NEVER) -> float:
    """Memory per GPU that ``role`` needs at least with all GPUs of a kind, or a pool of any size, to itself.

    The reserve is included; infinite if no layout spreads over them.
    """
    facts = problem.facts
    sizes = problem.sizes if every_size else {device_type: sizes[-1:] for device_type, sizes in problem.sizes.items()}
    roomy = replace(problem, facts=with_memory(facts, lambda _: 2**60), sizes=sizes)
    table = _whole_table(roomy, role, deadline)
    if not len(table):
        return float("inf")
    return float(np.min(table.resident_bytes + table.transient_bytes)) + facts.training.memory_reserve_bytes


def fewest_gpus(problem: Problem, deadline: Deadline = NEVER, too_few: int = 0) -> int | None:
    """The fewest GPUs of the first kind, beside all others, on which some allowed placement fits, or ``None``.

    Doubles nodes, then bisects; ``too_few`` nodes are known to be that. Raises ``TimeUpError`` when ``deadline`` is
    over before that.
    """
    low, high = too_few, 2 * too_few or problem.facts.group.nodes
    if high > MAX_NODES:
        return None
    while not _fits(problem, high, deadline):
        low, high = high, high * 2
        if high > MAX_NODES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(problem, middle, deadline) else (middle, high)
    return high * problem.facts.group.gpus_per_node


def _fits(problem: Problem, nodes: int, deadline: Deadline) -> bool:
    group = replace(problem.facts.group, nodes=nodes)
    sizes = problem.sizes | {group.device: pool_sizes(nodes, group.gpus_per_node)}
    larger = replace(problem, facts=replace(problem.facts, group=group), sizes=sizes)
    return greedy(_whole_instance(larger, deadline))[0] is not None


def cluster_of(problem: Problem) -> str:
    """The GPUs that a plan may use, as a message names them."""
    return " + ".join(f"{n} x {device_type}" for device_type, n in problem.gpus.items())


def name_of(facts: Facts, role: str) -> str:
    """The model of a role; a generating actor on a dedicated pool has the actor's."""
    return facts.roles["actor" if role == GENERATOR else role].shape.name


def _of_first(facts: Facts) -> str:
    return f" of {facts.group.device}" if len(facts.device_types) > 1 else ""
