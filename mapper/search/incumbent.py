"""A good choice quickly: the starting point of the search, and the yardstick that safe pruning measures against."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.pareto import non_dominated
from mapper.model.choices import ticks_of
from mapper.model.makespan import makespan
from mapper.model.variables import Choice
from mapper.search.prune import restricted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement
    from profiles.records import Ints

MAX_ALLOCATIONS = 250_000
"""Allocations tried for one placement; beyond it a random sample of that many (fixed seed) is."""

FEW_ROLES = 3
"""Sets of so many roles try every order; the number of orders explodes beyond, and few of them end elsewhere."""

FEW_SIZES = 64
"""Pool sizes of a group that a first look at a large cluster takes: evenly spread ones, whose sums fill the cluster."""

MOST_PAIRS = 2_000_000
"""Pairs of rows that are tried at once."""

NEVER = np.iinfo(np.int64).max

TURNS = 4
"""Turns that each role takes at most to pick again."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """A role's rows worth picking, fastest first: row numbers, GPUs, ticks of all calls together, MiB."""

    row: Ints
    num_gpus: Ints
    load: Ints
    resident: Ints
    transient: Ints
    need: Ints


@dataclass(frozen=True, eq=False)
class _Picks:
    """What one set picks on each size ``[S]`` where its rows fit together: row numbers ``[S]`` by role."""

    sizes: Ints
    rows: dict[str, Ints]


def thinned(instance: Instance) -> tuple[Instance, dict[str, Ints]]:
    """The instance with a few pool sizes of each group and the rows that need just these; and which rows, by role."""
    if instance.equal_sizes or all(len(sizes) <= FEW_SIZES for sizes in instance.sizes.values()):
        return instance, {role: np.arange(len(table)) for role, table in instance.tables.items()}
    sizes = {group: _evenly(left, instance.gpus[group.device_type]) for group, left in instance.sizes.items()}
    used = np.unique(np.concatenate([np.asarray(left, dtype=np.int64) for left in sizes.values()]))
    rows = {role: np.flatnonzero(np.isin(table.num_gpus, used)) for role, table in instance.tables.items()}
    return restricted(replace(instance, sizes=sizes), rows), rows


def _evenly(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The largest of ``sizes`` up to each of so many equal parts of the cluster, and the smallest."""
    ascending = np.asarray(sizes, dtype=np.int64)
    upto = np.arange(1, FEW_SIZES + 1) * most // FEW_SIZES
    at = np.searchsorted(ascending, upto, side="right") - 1
    return tuple(np.unique(ascending[np.maximum(at, 0)]).tolist())


def greedy(instance: Instance) -> tuple[Choice | None, int]:
    """A feasible choice and its ticks; ``(None, 0)`` if this heuristic finds none (the solver still may)."""
    found = greedy_by_placement(instance)
    best = min(found, key=lambda placement: found[placement][1], default=None)
    return (None, 0) if best is None else found[best]


def quick_choice(instance: Instance) -> tuple[Choice | None, int]:
    """As ``greedy``, on a few pool sizes where there are many; on all if that finds none."""
    few, rows = thinned(instance)
    choice, ticks = greedy(few)
    if choice is None:
        return greedy(instance) if few is not instance else (None, 0)
    return Choice(choice.pools, {role: int(rows[role][row]) for role, row in choice.rows.items()}), ticks


def greedy_by_placement(instance: Instance) -> dict[Placement, tuple[Choice, int]]:
    """The same of each placement for which it finds one.

    For each group and size, roles take turns to pick their fastest configuration in the memory that the others leave,
    from the least hungry start, until nothing changes; several orders of the first turn are tried. Then every
    allocation of every placement is played with those picks.
    """
    worth = {
        (role, device_type): _worth_picking(instance, role, device_type)
        for role in instance.tables
        for device_type in instance.device_types
    }
    picks = {group: _picked(instance, group, sizes, worth) for group, sizes in instance.sizes.items()}
    found = {partition: _best_allocation(instance, partition, picks) for partition in instance.partitions}
    return {partition: one for partition, one in found.items() if one is not None}


def quick_limits(instance: Instance) -> dict[Placement, int]:
    """Ticks of a quick choice of each placement that one is found for."""
    few, _ = thinned(instance)
    return {placement: ticks_of(few, choice) for placement, (choice, _) in greedy_by_placement(few).items()}


def _worth_picking(instance: Instance, role: str, device_type: str) -> _Rows:
    """Rows that no other of the kind beats in GPUs, total time and memory: a pick depends on nothing else."""
    of_kind = instance.rows_on(role, device_type)
    gpus, resident = instance.tables[role].num_gpus[of_kind], instance.resident_mib[role][of_kind]
    transient, load = instance.transient_mib[role][of_kind], instance.turns(role)[of_kind]
    kept = non_dominated(np.stack([gpus, load, resident, resident + transient], axis=1).astype(np.float64))
    kept = kept[np.argsort(load[kept], kind="stable")]
    return _Rows(of_kind[kept], gpus[kept], load[kept], resident[kept], transient[kept], (resident + transient)[kept])


def _picked(
    instance: Instance, group: ColocationGroup, sizes: tuple[int, ...], worth: dict[tuple[str, str], _Rows]
) -> _Picks:
    """The group's picks by size: of the orders tried, the one with the shortest load.

    A size whose picks are no faster than a smaller one's would take those, so it is left out unless sizes must agree.
    """
    if not sizes:
        return _Picks(np.zeros(0, dtype=np.int64), {})
    roles, every = group.roles, np.asarray(sizes, dtype=np.int64)
    rows = {role: worth[role, group.device_type] for role in roles}
    gained, of = _sizes_that_gain(every, rows)
    best = np.full(len(gained), NEVER)
    chosen = {role: np.zeros(len(gained), dtype=np.int64) for role in roles}
    for order in _orders(roles):
        at, fits = _descend(gained, order, rows, instance.capacity_mib[group.device_type])
        load = np.sum([rows[role].load[at[role]] for role in roles], axis=0)
        better = np.flatnonzero(fits & (load < best))
        best[better] = load[better]
        for role in roles:
            chosen[role][better] = rows[role].row[at[role][better]]
    before = np.concatenate([[NEVER], np.minimum.accumulate(best)[:-1]])
    faster = np.flatnonzero(best < before)
    if not instance.equal_sizes:
        return _Picks(gained[faster], {role: picked[faster] for role, picked in chosen.items()})
    of = np.searchsorted(faster, of, side="right") - 1
    return _Picks(every[of >= 0], {role: picked[faster[of[of >= 0]]] for role, picked in chosen.items()})


def _sizes_that_gain(sizes: Ints, rows: dict[str, _Rows]) -> tuple[Ints, Ints]:
    """The smallest of each run of sizes that hold the same rows, and the run of each size."""
    held = np.stack([np.searchsorted(np.sort(r.num_gpus), sizes, side="right") for r in rows.values()], axis=1)
    _, first, of = np.unique(held, axis=0, return_index=True, return_inverse=True)
    return sizes[first], of.reshape(-1)


def _orders(roles: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Orders of the first turn: all of them for up to three roles, beyond that every rotation, forth and back."""
    if len(roles) <= FEW_ROLES:
        yield from permutations(roles)
        return
    for line in (roles, roles[::-1]):
        yield from (line[i:] + line[:i] for i in range(len(line)))


def _descend(
    sizes: Ints, order: tuple[str, ...], rows: dict[str, _Rows], capacity: int
) -> tuple[dict[str, Ints], np.ndarray]:
    """Coordinate descent on all ``sizes`` at once from the rows that need least memory; and where the end fits."""
    held = {role: rows[role].num_gpus <= sizes[:, None] for role in order}
    at = {role: np.argmin(np.where(held[role], rows[role].need, NEVER), axis=1) for role in order}
    for _ in range(TURNS):
        before = {role: picked.copy() for role, picked in at.items()}
        for role in order:
            left, peak = np.full(len(sizes), capacity), np.zeros_like(sizes)
            for other in set(order) - {role}:
                left = left - rows[other].resident[at[other]]
                peak = np.maximum(peak, rows[other].transient[at[other]])
            fits = held[role] & (rows[role].need <= left[:, None]) & (rows[role].resident <= (left - peak)[:, None])
            at[role] = np.where(np.any(fits, axis=1), np.argmax(fits, axis=1), at[role])
        if all(np.array_equal(before[role], at[role]) for role in order):
            break
    resident = np.sum([rows[role].resident[at[role]] for role in order], axis=0)
    transient = np.max([rows[role].transient[at[role]] for role in order], axis=0)
    there = np.all([rows[role].num_gpus[at[role]] <= sizes for role in order], axis=0)
    return at, there & (resident + transient <= capacity)


def _best_allocation(
    instance: Instance, partition: Placement, picks: dict[ColocationGroup, _Picks]
) -> tuple[Choice, int] | None:
    """The fastest allocation of one placement, all of them played at once."""
    sizes = [picks[group].sizes for group in partition]
    device_types = [group.device_type for group in partition]
    at = (
        _allocations(instance, device_types, sizes)
        if all(map(len, sizes))
        else np.zeros((0, len(sizes)), dtype=np.int64)
    )
    if not len(at):
        return None
    durations = {key: np.asarray(t, dtype=np.float64)[0] for key, t in instance.ticks["controller"].items()}
    for axis, group in enumerate(partition):
        for role, rows in picks[group].rows.items():
            for key, ticks in instance.ticks[role].items():
                durations[key] = ticks[rows].astype(np.float64)[at[:, axis]]
    ends = np.broadcast_to(makespan(instance, partition, durations), (len(at),))
    best = int(np.argmin(ends))
    pools = tuple((group, int(s[i])) for group, s, i in zip(partition, sizes, at[best], strict=True))
    chosen = [(picks[group].rows, i) for group, i in zip(partition, at[best], strict=True)]
    return Choice(pools, {role: int(rows[i]) for part, i in chosen for role, rows in part.items()}), int(ends[best])


def _allocations(instance: Instance, device_types: list[str], sizes: list[Ints]) -> Ints:
    """Positions in ``sizes`` of tuples that the cluster holds, ``[A, groups]``: all, or a sample if they are too many.

    The last group takes the largest pool that is left: a larger one is never slower.
    """
    if instance.equal_sizes:  # of one kind
        same = reduce(np.intersect1d, sizes)
        same = same[same * len(sizes) <= instance.gpus[device_types[0]]]
        return np.stack([np.searchsorted(s, same) for s in sizes], axis=1)
    *free, last = sizes
    shape = [len(s) for s in free]
    total = math.prod(shape)
    at = (
        np.indices(shape).reshape(len(shape), total).T
        if total <= MAX_ALLOCATIONS
        else _drawn(instance, device_types, sizes)
    )
    left = {device_type: np.full(len(at), most) for device_type, most in instance.gpus.items()}
    budget = np.full(len(at), instance.budget)
    for device_type, s, position in zip(device_types[:-1], free, at.T, strict=True):
        left[device_type] = left[device_type] - s[position]
        budget = budget - instance.weight[device_type] * s[position]
    there = np.all([n >= 0 for n in left.values()], axis=0)
    room = np.minimum(left[device_types[-1]], budget // instance.weight[device_types[-1]])
    largest = np.searchsorted(last, room, side="right") - 1
    return np.asarray(np.concatenate([at, largest[:, None]], axis=1)[there & (largest >= 0)], dtype=np.int64)


def _drawn(instance: Instance, device_types: list[str], sizes: list[Ints]) -> Ints:
    """A fixed random sample of positions for all groups but the last.

    One group after another takes a size that leaves room for the smallest ones after it.
    """
    random = np.random.default_rng(0)
    least = {
        device_type: sum(int(s[0]) for k, s in zip(device_types, sizes, strict=True) if k == device_type)
        for device_type in instance.gpus
    }
    left = {
        device_type: np.full(MAX_ALLOCATIONS, most - least[device_type], dtype=np.int64)
        for device_type, most in instance.gpus.items()
    }
    counted = sum(instance.weight[device_type] * n for device_type, n in least.items())
    budget = np.full(MAX_ALLOCATIONS, instance.budget - counted, dtype=np.int64)
    if budget[0] < 0 or any(n[0] < 0 for n in left.values()):
        return np.zeros((0, len(sizes) - 1), dtype=np.int64)
    columns = []
    for device_type, s in zip(device_types[:-1], sizes[:-1], strict=True):
        room = np.minimum(left[device_type], budget // instance.weight[device_type])
        fitting = np.searchsorted(s, room + s[0], side="right")
        columns.append((random.random(MAX_ALLOCATIONS) * fitting).astype(np.int64))
        more = s[columns[-1]] - s[0]
        left[device_type], budget = left[device_type] - more, budget - instance.weight[device_type] * more
    return np.stack(columns, axis=1)


def polished(instance: Instance, choice: Choice, ticks: int) -> tuple[Choice, int]:
    """The choice, of ``ticks`` with calls as priced, with two roles at a time in their best rows, pools as they are.

    A quick choice fills the memory in turns; what one role could give to another only both together show.
    """
    for _ in range(TURNS):
        before = ticks
        for first, second in combinations(instance.tables, 2):
            choice, ticks = _pair_polished(instance, choice, ticks, first, second)
        if ticks == before:
            break
    return choice, ticks


def _pair_polished(instance: Instance, choice: Choice, ticks: int, first: str, second: str) -> tuple[Choice, int]:
    pool_of = {role: pool for pool in choice.pools for role in pool[0].roles}
    rows = [instance.rows(role, *pool_of[role]) for role in (first, second)]
    if len(rows[0]) * len(rows[1]) > MOST_PAIRS:
        return choice, ticks
    axes = {first: rows[0][:, None], second: rows[1][None, :]}
    at = {role: axes.get(role, np.asarray([[choice.rows[role]]])) for role in choice.rows}
    durations = {key: t.astype(np.float64)[0] for key, t in instance.ticks["controller"].items()}
    for role, row in at.items():
        durations |= {key: t[row].astype(np.float64) for key, t in instance.ticks[role].items()}
    ends = makespan(instance, tuple(group for group, _ in choice.pools), durations)
    for group, _ in choice.pools:
        resident = sum(instance.resident_mib[role][at[role]] for role in group.roles)
        transient = reduce(np.maximum, [instance.transient_mib[role][at[role]] for role in group.roles])
        ends = np.where(resident + transient <= instance.capacity_mib[group.device_type], ends, np.inf)
    best = np.unravel_index(int(np.argmin(ends)), ends.shape)
    if not ends[best] < ticks:
        return choice, ticks
    chosen = {first: int(rows[0][best[0]]), second: int(rows[1][best[1]])}
    return Choice(choice.pools, choice.rows | chosen), int(ends[best])
