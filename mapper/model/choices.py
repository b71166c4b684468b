"""What a choice is worth, and whether an instance contains it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from mapper.model.makespan import makespan

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import ColocationGroup
    from profiles.records import Ints


def ticks_of(instance: Instance, choice: Choice) -> int:
    """Ticks of an iteration of ``choice``."""
    if instance.neighbours is not None:
        return instance.neighbours.ticks(instance, choice)
    durations = {
        key: np.asarray(t[choice.rows.get(role, 0)], dtype=np.float64)
        for role, calls in instance.ticks.items()
        for key, t in calls.items()
    }
    if instance.sync is not None:
        durations["transition"] = np.asarray(transfer_ticks(instance, choice), dtype=np.float64)
    return int(makespan(instance, tuple(group for group, _ in choice.pools), durations))


def transfer_ticks(instance: Instance, choice: Choice) -> int:
    """Ticks of the transfer of weights between the pools of a choice."""
    assert instance.sync is not None, "the actor generates on a dedicated pool"
    row = choice.rows[GENERATOR]
    device_type = next(group.device_type for group, _ in choice.pools if "actor" in group.roles)
    engine = instance.tables[GENERATOR].take(np.asarray([row]))
    return int(instance.sync.ticks(engine, device_type, int(senders(instance)[choice.rows["actor"]]))[0])


def senders(instance: Instance) -> Ints:
    """GPUs that hold the actor's weights for each of its rows: those that send them to another pool."""
    return instance.tables["actor"].layouts.weights.num_gpus


def fits(instance: Instance, choice: Choice) -> bool:
    """Whether the pools of ``choice`` are there, and hold their rows and their memory."""
    if {group for group, _ in choice.pools} not in [set(p) for p in instance.partitions]:
        return False
    used = {
        device_type: sum(n for group, n in choice.pools if group.device_type == device_type)
        for device_type in instance.device_types
    }
    if (
        any(n > instance.gpus[device_type] for device_type, n in used.items())
        or instance.spent(choice.pools) > instance.budget
    ):
        return False
    if instance.equal_sizes and len({n for _, n in choice.pools}) > 1:
        return False
    return all(n in instance.sizes[group] and _pool_holds(instance, group, n, choice) for group, n in choice.pools)


def _pool_holds(instance: Instance, group: ColocationGroup, num_gpus: int, choice: Choice) -> bool:
    rows, device_type = (
        {role: choice.rows[role] for role in group.roles},
        instance.device_types.index(group.device_type),
    )
    if any(int(instance.tables[r].device_type[i]) != device_type for r, i in rows.items()):
        return False
    need = sum(int(instance.resident_mib[r][i]) for r, i in rows.items()) + max(
        int(instance.transient_mib[r][i]) for r, i in rows.items()
    )
    return need <= instance.capacity_mib[group.device_type] and all(
        int(instance.tables[r].num_gpus[i]) <= num_gpus for r, i in rows.items()
    )


def with_budget(instance: Instance, budget: int) -> Instance:
    """The same priced tables where all pools together may count at most ``budget``."""
    left = {
        g: tuple(n for n in sizes if n * instance.weight[g.device_type] <= budget)
        for g, sizes in instance.sizes.items()
    }
    return replace(instance, budget=min(budget, instance.budget), sizes=left)


def gpus_of(choice: Choice) -> int:
    """GPUs of all pools of a choice."""
    return sum(n for _, n in choice.pools)
