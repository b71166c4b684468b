"""Algorithms 1 and 2 of the HybridFlow paper, as printed: what the search is compared with."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mapper.model.variables import Choice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement
    from profiles.records import Ints

STAGES_OF_PAPER = ("generation", "preparation", "training")


def paper(instance: Instance) -> tuple[Choice | None, float]:
    """The paper's mapping and its ``d_cost`` in seconds; ``(None, 0.0)`` if nothing fits.

    Algorithm 1 tries every placement and every allocation that sums to all GPUs, from the smallest pools that fit;
    Algorithm 2 picks each model's strategy on its own by its own simulated time: for the actor training first, then
    generation with the memory that is left. Micro-batch and recompute, which the paper leaves open, go with the
    strategy: the fastest that fits. Memory left is what the set's other models need at least.
    """
    best: tuple[float, Choice | None] = (np.inf, None)
    for partition in instance.partitions:
        for sizes in allocations(instance, partition, use_all=True):
            pools = tuple(zip(partition, sizes, strict=True))
            picked = [_auto_parallel_set(instance, group, n) for group, n in pools]
            if any(rows is None for rows in picked):
                continue
            rows = {role: row for part in picked if part is not None for role, row in part.items()}
            cost = d_cost(instance, partition, rows) * instance.tick_s
            if cost < best[0]:
                best = (cost, Choice(pools, rows))
    return best[1], float(best[0]) if best[1] is not None else 0.0


def d_cost(instance: Instance, partition: Placement, rows: dict[str, int]) -> int:
    """Sum over stages of the maximum over sets of the sum inside a set, in ticks (Algorithm 1, lines 25 to 34)."""
    total = 0
    for stage in STAGES_OF_PAPER:
        loads = [
            sum(
                int(instance.ticks[c.role][c.key][rows[c.role]])
                for c in instance.flow.calls
                if c.stage == stage and c.role in g.roles
            )
            for g in partition
        ]
        total += max(loads)
    return total


def allocations(instance: Instance, partition: Placement, use_all: bool = False) -> Iterator[tuple[int, ...]]:
    """Pool sizes of the partition's groups that the cluster holds (with ``use_all``, that use every GPU)."""
    for sizes in product(*(instance.sizes[group] for group in partition)):
        pools = tuple(zip(partition, sizes, strict=True))
        used = {
            device_type: sum(n for group, n in pools if group.device_type == device_type)
            for device_type in instance.device_types
        }
        if (
            any(n > instance.gpus[device_type] for device_type, n in used.items())
            or instance.spent(pools) > instance.budget
        ):
            continue
        if use_all and used != instance.gpus:
            continue
        if instance.equal_sizes and len(set(sizes)) > 1:
            continue
        yield sizes


def _auto_parallel_set(instance: Instance, group: ColocationGroup, num_gpus: int) -> dict[str, int] | None:
    """Algorithm 2 for each model of a set in turn, with the memory that the others need at least set aside."""
    roles, capacity = group.roles, instance.capacity_mib[group.device_type]
    rows = {role: instance.rows(role, group, num_gpus) for role in roles}
    least = {role: int(instance.resident_mib[role][r].min()) for role, r in rows.items()}
    picked: dict[str, int] = {}
    for role in roles:
        others = sum(int(instance.resident_mib[o][picked[o]]) if o in picked else least[o] for o in roles if o != role)
        row = _auto_parallel(instance, role, rows[role], capacity - others)
        if row is None:
            return None
        picked[role] = row
    resident = sum(int(instance.resident_mib[role][row]) for role, row in picked.items())
    transient = max(int(instance.transient_mib[role][row]) for role, row in picked.items())
    return picked if resident + transient <= capacity else None


def _auto_parallel(instance: Instance, role: str, rows: Ints, capacity: int) -> int | None:
    """The model's fastest strategy in ``capacity`` MiB: training first, then the rest with that strategy kept."""
    table = instance.tables[role]
    rows = rows[instance.resident_mib[role][rows] + instance.transient_mib[role][rows] <= capacity]
    if not len(rows):
        return None
    calls = instance.flow.calls_of(role)
    train = [c.key for c in calls if c.kind == "train"]
    if train:
        ticks = sum(instance.ticks[role][key][rows] for key in train)
        best = rows[ticks == np.min(ticks)]
        weights = table.layouts.weights
        first = best[0]
        alike = np.all(
            [getattr(weights, f)[rows] == getattr(weights, f)[first] for f in ("dp", "tp", "pp", "cp", "ep")], axis=0
        )
        rows = rows[alike & (ticks == np.min(ticks))]
    rest = sum(instance.ticks[role][c.key][rows] for c in calls if c.kind != "train" and c.stage in STAGES_OF_PAPER)
    return int(rows[int(np.argmin(rest))]) if np.ndim(rest) else int(rows[0])
