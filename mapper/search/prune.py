"""Safe pruning against a known choice: leave out what cannot be part of anything better.

Every rule is a necessary condition for an iteration of at most ``limit`` ticks, so the best choice, if it beats the
known one, survives. Placements are pruned one by one, since each says who waits for whom.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mapper.model.makespan import makespan, waits_for
from mapper.model.unpriced import least_of_each
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement
    from profiles.records import Floats, Ints

ROUNDS = 4
"""Each round works with what the one before left; more change nothing that we have seen."""

Sizes = dict["ColocationGroup", tuple[int, ...]]


def prune_beyond(instance: Instance, limit: int) -> tuple[Instance, dict[str, Ints]]:
    """What choices within ``limit`` can use of placements, pool sizes and rows; and which rows are kept, by role."""
    return prune_each_beyond(instance, dict.fromkeys(instance.partitions, limit))


def prune_each_beyond(instance: Instance, limits: Mapping[Placement, int]) -> tuple[Instance, dict[str, Ints]]:
    """The same with a limit of its own for each placement."""
    keep = {role: np.zeros(len(table), dtype=bool) for role, table in instance.tables.items()}
    partitions: list[Placement] = []
    sizes: dict[ColocationGroup, set[int]] = {}
    for partition in instance.partitions:
        found = _prune_partition(instance, partition, limits[partition])
        if found is None:
            continue
        partitions.append(partition)
        for group, left in found[0].items():
            sizes[group] = sizes.get(group, set()) | set(left)
        for role, rows in found[1].items():
            keep[role][rows] = True
    kept = {role: np.flatnonzero(mask) for role, mask in keep.items()}
    ordered: Sizes = {group: tuple(sorted(left)) for group, left in sizes.items()}
    return restricted(replace(instance, partitions=tuple(partitions), sizes=ordered), kept), kept


def _prune_partition(instance: Instance, partition: Placement, limit: int) -> tuple[Sizes, dict[str, Ints]] | None:
    """Pool sizes and rows that this placement may still use within ``limit``; ``None`` if it cannot at all."""
    sizes: Sizes = {group: instance.sizes[group] for group in partition}
    rows = {role: instance.rows_on(role, group.device_type) for group in partition for role in group.roles}
    for _ in range(ROUNDS):
        sizes = _within_budget(instance, sizes)
        if not all(sizes.values()):
            return None
        rows = _rows_on_time(instance, partition, sizes, rows, limit)
        sizes = {group: _sizes_that_serve(instance, group, left, rows, limit) for group, left in sizes.items()}
        if not all(sizes.values()):
            return None
        rows = _rows_with_room(instance, partition, sizes, rows, limit)
        sizes = {group: _sizes_with_room(instance, partition, sizes, rows, group, limit) for group in partition}
        if not all(sizes.values()):
            return None
    return sizes, rows


def _within_budget(instance: Instance, sizes: Sizes) -> Sizes:
    """Sizes that leave the other groups at least their smallest pools."""
    if not all(sizes.values()):
        return sizes
    most = {group: int(_room(instance, sizes, (), group, np.zeros(()))) for group in sizes}
    out = {group: tuple(n for n in left if n <= most[group]) for group, left in sizes.items()}
    if instance.equal_sizes:
        same = set.intersection(*(set(left) for left in out.values()))
        out = {group: tuple(n for n in left if n in same) for group, left in out.items()}
    return out


def _room(
    instance: Instance, sizes: Sizes, taken: tuple[ColocationGroup, ...], own: ColocationGroup, pool: NDArray[Any]
) -> Floats:
    """GPUs that ``own`` may have at most where the group in ``taken`` has ``pool`` of them, all others the fewest."""
    others = [group for group in sizes if group != own and group not in taken]
    left = instance.gpus[own.device_type] - sum(sizes[g][0] for g in others if g.device_type == own.device_type)
    budget = instance.budget - sum(instance.weight[g.device_type] * sizes[g][0] for g in others)
    same = sum(g.device_type == own.device_type for g in taken)
    weight = sum(instance.weight[g.device_type] for g in taken)
    return np.asarray(np.minimum(left - same * pool, (budget - weight * pool) // instance.weight[own.device_type]))


def _rows_on_time(
    instance: Instance, partition: Placement, sizes: Sizes, rows: dict[str, Ints], limit: int
) -> dict[str, Ints]:
    """Rows that some pool holds and whose calls can all lie on paths of at most ``limit``.

    What comes before and after a call, by its inputs and by its turn on its pool, takes at least the shortest
    durations that are left.
    """
    largest = {role: sizes[group][-1] for group in partition for role in group.roles}
    rows = {role: r[instance.tables[role].num_gpus[r] <= largest[role]] for role, r in rows.items()}
    shortest = {
        key: int(t[rows[role]].min(initial=limit + 1)) if role in rows else int(t[0])
        for role, calls in instance.ticks.items()
        for key, t in calls.items()
    }
    before, after = _around(instance, partition, shortest)
    return {
        role: r[np.all([before[key] + t[r] + after[key] <= limit for key, t in instance.ticks[role].items()], axis=0)]
        for role, r in rows.items()
    }


def _around(
    instance: Instance, partition: Placement, shortest: dict[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Ticks that pass at least before each call starts and after it has ended."""
    waits = waits_for(instance, partition)
    before = dict.fromkeys(shortest, 0)
    for call in instance.flow.calls:
        before[call.key] = max((before[key] + shortest[key] for key in waits[call.key]), default=0)
    after = dict.fromkeys(shortest, 0)
    for call in reversed(instance.flow.calls):
        for key in waits[call.key]:
            after[key] = max(after[key], shortest[call.key] + after[call.key])
    return before, after


def _sizes_that_serve(
    instance: Instance, group: ColocationGroup, sizes: tuple[int, ...], rows: dict[str, Ints], limit: int
) -> tuple[int, ...]:
    """Sizes on which every role has a row, the least hungry fit together and the fastest end in time together."""
    at = np.asarray(sizes, dtype=np.int64)
    least = [_least(instance, role, rows, at) for role in group.roles]
    resident, transient, fastest = (np.stack(column) for column in zip(*least, strict=True))
    fits = resident.sum(axis=0) + transient.max(axis=0) <= instance.capacity_mib[group.device_type]
    return tuple(at[fits & (fastest.sum(axis=0) <= limit)].tolist())


def _rows_with_room(
    instance: Instance, partition: Placement, sizes: Sizes, rows: dict[str, Ints], limit: int
) -> dict[str, Ints]:
    """Rows that fit beside the least hungry rows of their group and end in time if all else is as fast as can be.

    That is: their pool takes as few GPUs as it can, and the others' have what is left.
    """
    out = dict(rows)
    for group in partition:
        at, capacity = np.asarray(sizes[group], dtype=np.int64), instance.capacity_mib[group.device_type]
        for role in group.roles:
            r = out[role][instance.tables[role].num_gpus[out[role]] <= at[-1]]
            pool = at[np.searchsorted(at, instance.tables[role].num_gpus[r])]
            durations = shortest_around(instance, partition, sizes, out, group, pool, np.full_like(pool, at[-1]))
            durations |= {key: t[r].astype(np.float64) for key, t in instance.ticks[role].items()}
            in_time = makespan(instance, partition, durations) <= limit
            out[role] = r[in_time & (_joint_need(instance, group, role, r, out, at[-1:]) <= capacity)]
    return out


def _joint_need(
    instance: Instance, group: ColocationGroup, role: str, row: Ints, rows: dict[str, Ints], most: Ints
) -> Ints:
    """MiB that a pool needs at least for each of ``row`` of one role beside the least hungry rows of the others."""
    resident, transient = least_of_others(instance, group, role, rows, most)
    added = np.maximum(instance.transient_mib[role][row], transient)
    return np.asarray(instance.resident_mib[role][row] + resident + added, dtype=np.int64)


def least_of_others(
    instance: Instance, group: ColocationGroup, role: str, rows: dict[str, Ints], most: Ints
) -> tuple[int, int]:
    """MiB that a group's other roles keep at least on pools of ``most`` GPUs ``[1]``, and that one of them adds."""
    others = [other for other in group.roles if other != role]
    least = [_least(instance, other, rows, most) for other in others]
    return sum(int(resident[0]) for resident, _, _ in least), max((int(added[0]) for _, added, _ in least), default=0)


def _sizes_with_room(
    instance: Instance, partition: Placement, sizes: Sizes, rows: dict[str, Ints], group: ColocationGroup, limit: int
) -> tuple[int, ...]:
    """Sizes of one group on which everything ends in time if all else is as fast as the GPUs that are left allow."""
    pool = np.asarray(sizes[group], dtype=np.int64)
    return tuple(
        pool[
            makespan(instance, partition, shortest_around(instance, partition, sizes, rows, group, pool, pool)) <= limit
        ].tolist()
    )


def shortest_around(
    instance: Instance,
    partition: Placement,
    sizes: Sizes,
    rows: dict[str, Ints],
    group: ColocationGroup,
    pool: Ints,
    own: Ints,
) -> dict[str, Floats]:
    """Shortest duration of each call where ``group`` takes ``pool`` GPUs from the others and has rows of up to ``own``.

    Every other group has what the smallest pools of the rest leave.
    """
    durations = {key: t.astype(np.float64)[0] for key, t in instance.ticks[CONTROLLER].items()}
    for other in partition:
        room = own if other == group else np.minimum(_room(instance, sizes, (group,), other, pool), sizes[other][-1])
        for role in other.roles:
            ticks, left = instance.ticks[role], rows[role]
            least = least_of_each(instance.tables[role].num_gpus[left], [t[left] for t in ticks.values()], room)
            durations |= {key: found.astype(np.float64) for key, found in zip(ticks, least, strict=True)}
    return durations


def _least(instance: Instance, role: str, rows: dict[str, Ints], sizes: Ints) -> list[Ints]:
    """The least resident and transient memory and turns of a role over the rows that are left, on each of ``sizes``."""
    columns = (instance.resident_mib[role], instance.transient_mib[role], instance.turns(role))
    left = rows[role]
    return least_of_each(instance.tables[role].num_gpus[left], [column[left] for column in columns], sizes)


def restricted(instance: Instance, kept: dict[str, Ints]) -> Instance:
    """``instance`` with only the kept rows of each table; tables that are not named stay whole."""
    return replace(
        instance,
        tables={role: table.take(kept[role]) if role in kept else table for role, table in instance.tables.items()},
        ticks={
            role: {key: t[kept[role]] if role in kept else t for key, t in calls.items()}
            for role, calls in instance.ticks.items()
        },
        resident_mib={role: m[kept[role]] if role in kept else m for role, m in instance.resident_mib.items()},
        transient_mib={role: m[kept[role]] if role in kept else m for role, m in instance.transient_mib.items()},
    )
