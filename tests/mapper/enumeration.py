"""Every choice of a small instance, and when its iteration ends: worked out without the mapper's own formulas."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from mapper.model.variables import Choice
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup


def every_combination(x: Instance) -> Iterator[Choice]:
    """Each placement with each pool size and each row of each role, whether it fits or not."""
    for placement in x.partitions:
        for sizes in product(*(x.sizes[group] for group in placement)):
            for rows in product(*(range(len(table)) for table in x.tables.values())):
                yield Choice(tuple(zip(placement, sizes, strict=True)), dict(zip(x.tables, rows, strict=True)))


def every_choice(x: Instance) -> list[Choice]:
    """The combinations that GPUs, budget and memory allow."""
    return [choice for choice in every_combination(x) if allowed(x, choice)]


def allowed(x: Instance, choice: Choice) -> bool:
    """Whether the pools are there, and hold the rows of their roles."""
    used = {
        device_type: sum(n for group, n in choice.pools if group.device_type == device_type)
        for device_type in x.device_types
    }
    spent = sum(x.weight[device_type] * n for device_type, n in used.items())
    if spent > x.budget or any(n > x.gpus[device_type] for device_type, n in used.items()):
        return False
    if x.equal_sizes and len({n for _, n in choice.pools}) > 1:
        return False
    return all(_holds(x, group, n, choice.rows) for group, n in choice.pools)


def _holds(x: Instance, group: ColocationGroup, num_gpus: int, rows: dict[str, int]) -> bool:
    kept, most = 0, 0
    for role in group.roles:
        table, row = x.tables[role], rows[role]
        if x.device_types[table.device_type[row]] != group.device_type or table.num_gpus[row] > num_gpus:
            return False
        kept += x.resident_mib[role][row]
        most = max(most, x.transient_mib[role][row])
    return bool(kept + most <= x.capacity_mib[group.device_type])


def end_ticks(x: Instance, choice: Choice) -> int:
    """When the iteration ends: each call after its inputs, and after the call before it on its pool."""
    pool_of = {role: i for i, (group, _) in enumerate(choice.pools) for role in group.roles}
    end: dict[str, int] = {}
    free: dict[int, int] = {}
    for call in x.flow.calls:
        pool = pool_of.get(call.role, -1)
        start = max([free.get(pool, 0), *(end[key] for key in call.inputs)])
        end[call.key] = free[pool] = start + call_ticks(x, choice, call.key)
    return max(end.values())


def call_ticks(x: Instance, choice: Choice, key: str) -> int:
    """Ticks of one call in the rows of a choice; a transfer between pools is priced for both of its ends."""
    if x.sync is not None and key == "transition":
        home = next(group.device_type for group, _ in choice.pools if "actor" in group.roles)
        senders = int(x.tables["actor"].layouts.weights.num_gpus[choice.rows["actor"]])
        engine = x.tables[GENERATOR].take(np.asarray([choice.rows[GENERATOR]]))
        return int(x.sync.ticks(engine, home, senders)[0])
    role = next(role for role, calls in x.ticks.items() if key in calls)
    return int(x.ticks[role][key][0 if role == CONTROLLER else choice.rows[role]])


def least_ticks(x: Instance, budget: int | None = None) -> int | None:
    """The end of the fastest choice, of those that count at most ``budget``; ``None`` if there is none."""
    ends = [end_ticks(x, c) for c in every_choice(x) if budget is None or counted(x, c) <= budget]
    return min(ends, default=None)


def counted(x: Instance, choice: Choice) -> int:
    """What the GPUs of a choice count together."""
    return sum(x.weight[group.device_type] * n for group, n in choice.pools)
