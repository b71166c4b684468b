"""A good choice quickly: the starting point of the search, and the yardstick that safe pruning measures against."""

from __future__ import annotations

import math
from functools import reduce
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from mapper.makespan import makespan
from mapper.variables import Choice

if TYPE_CHECKING:
    from mapper.instance import Instance
    from mapper.problem import Sets
    from profiles.records import Ints

MAX_GRID = 2_000_000
"""Tuples of sizes that are listed one by one; a cluster of hundreds of nodes has more than memory could hold."""

MAX_ALLOCATIONS = 200_000
"""Allocations tried for one placement; beyond it a random sample of that many (fixed seed) is."""


def greedy(x: Instance) -> tuple[Choice | None, int]:
    """A feasible choice and its ticks; ``(None, 0)`` if this heuristic finds none (the solver still may).

    For each set and size, roles take turns to pick their fastest configuration in the memory that the others leave,
    from the least hungry start, until nothing changes; every order of the first turn is tried. Then every
    allocation of every placement is played with those picks.
    """
    picks = {(roles, n): _fill(x, roles, n) for roles, sizes in x.sizes.items() for n in sizes}
    best: tuple[int, Choice | None] = (0, None)
    for partition in x.partitions:
        found = _best_allocation(x, partition, picks)
        if found is not None and (best[1] is None or found[0] < best[0]):
            best = found
    return best[1], best[0]


def _fill(x: Instance, roles: tuple[str, ...], num_gpus: int) -> dict[str, int] | None:
    """Configurations of one set on one size that fit together and are fast, or ``None``."""
    rows = {role: x.rows(role, num_gpus) for role in roles}
    loads = {role: np.sum([t[rows[role]] for t in x.ticks[role].values()], axis=0) for role in roles}
    best: tuple[int, dict[str, int] | None] = (0, None)
    for order in permutations(roles):
        chosen = _descend(x, order, rows, loads)
        if chosen is None:
            continue
        load = sum(int(loads[role][i]) for role, i in chosen.items())
        if best[1] is None or load < best[0]:
            best = (load, {role: int(rows[role][i]) for role, i in chosen.items()})
    return best[1]


def _descend(
    x: Instance, order: tuple[str, ...], rows: dict[str, Ints], loads: dict[str, Ints]
) -> dict[str, int] | None:
    """Coordinate descent from the configurations that need the least memory."""
    resident = {role: x.resident_mib[role][r] for role, r in rows.items()}
    transient = {role: x.transient_mib[role][r] for role, r in rows.items()}
    at = {role: int(np.argmin(resident[role] + transient[role])) for role in order}
    for _ in range(4):
        before = dict(at)
        for role in order:
            others = [o for o in order if o != role]
            kept = sum(int(resident[o][at[o]]) for o in others)
            peak = max((int(transient[o][at[o]]) for o in others), default=0)
            fits = resident[role] + np.maximum(transient[role], peak) + kept <= x.capacity_mib
            if np.any(fits):
                at[role] = int(np.argmin(np.where(fits, loads[role], np.iinfo(np.int64).max)))
        if at == before:
            break
    whole = sum(int(resident[o][at[o]]) for o in order) + max(int(transient[o][at[o]]) for o in order)
    return at if whole <= x.capacity_mib else None


def _best_allocation(
    x: Instance, partition: Sets, picks: dict[tuple[tuple[str, ...], int], dict[str, int] | None]
) -> tuple[int, Choice] | None:
    """The fastest allocation of one placement, all of them played at once."""
    sizes = [[n for n in x.sizes[roles] if picks[roles, n] is not None] for roles in partition]
    if not all(sizes):
        return None
    grid = _allocations(x, [np.asarray(s, dtype=np.int64) for s in sizes])
    if not len(grid):
        return None
    durations = {key: np.asarray(t, dtype=np.float64)[0] for key, t in x.ticks["controller"].items()}
    for axis, roles in enumerate(partition):
        at = np.searchsorted(sizes[axis], grid[:, axis])
        for role in roles:
            chosen = np.asarray([(picks[roles, n] or {})[role] for n in sizes[axis]], dtype=np.int64)
            for key, ticks in x.ticks[role].items():
                durations[key] = ticks[chosen][at].astype(np.float64)
    ends = np.broadcast_to(makespan(x, partition, durations), (len(grid),))
    best = int(np.argmin(ends))
    pools = tuple((roles, int(n)) for roles, n in zip(partition, grid[best], strict=True))
    rows = {role: row for pool in pools for role, row in (picks[pool] or {}).items()}
    return int(ends[best]), Choice(pools, rows)


def _allocations(x: Instance, sizes: list[Ints]) -> Ints:
    """Tuples of sizes that the cluster holds, ``[A, sets]``: every one, or a sample where they are too many."""
    if math.prod(len(s) for s in sizes) > MAX_GRID and not x.equal_sizes:
        return _drawn_allocations(x.num_gpus, sizes)
    if x.equal_sizes:
        same = reduce(np.intersect1d, sizes)
        grid = np.repeat(same[:, None], len(sizes), axis=1)
    else:
        grid = np.stack([g.ravel() for g in np.meshgrid(*sizes, indexing="ij")], axis=1)
    grid = grid[grid.sum(axis=1) <= x.num_gpus]
    if len(grid) > MAX_ALLOCATIONS:
        grid = grid[np.sort(np.random.default_rng(0).choice(len(grid), MAX_ALLOCATIONS, replace=False))]
    return np.asarray(grid, dtype=np.int64)


def _drawn_allocations(num_gpus: int, sizes: list[Ints]) -> Ints:
    """A fixed random sample: one set after another takes a size that leaves room for the smallest ones after it."""
    random = np.random.default_rng(0)
    options = [np.sort(s) for s in sizes]
    left = np.full(MAX_ALLOCATIONS, num_gpus - sum(int(s[0]) for s in options), dtype=np.int64)
    if left[0] < 0:
        return np.zeros((0, len(sizes)), dtype=np.int64)
    columns = []
    for s in options:
        fitting = np.searchsorted(s, left + s[0], side="right")
        columns.append(s[(random.random(len(left)) * fitting).astype(np.int64)])
        left = left + s[0] - columns[-1]
    return np.stack(columns, axis=1)
