"""Which layouts of a role that trains and generates are worth pairing with engines, when all other roles are priced.

Most of what a large search prices are pairs of weights and engine layouts on numbers of GPUs that no fast plan uses. A
quick choice of each placement, of what is priced already, says what its best plan takes at most. What generation may
then take with a row is the limit less the longest path through it, all else as fast as the GPUs that are left allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.table import by_gpus, to_mib
from mapper.model.instance import make_instance
from mapper.model.makespan import makespan
from mapper.search.incumbent import quick_limits
from mapper.search.prune import least_of_others, shortest_around

if TYPE_CHECKING:
    from collections.abc import Callable

    from mapper.candidates.table import RoleTable
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement, Problem
    from profiles.records import Floats, Ints

LONG = 2.0**45
"""Ticks of a generation that the longest path is sure to run through, and whose multiples floats still hold exactly."""


@dataclass(frozen=True, eq=False)
class _Around:
    """What a placement takes at least around one role: by pool size ``[S]`` of its group, ticks of all other calls.

    ``limit``: ticks of a quick choice. ``resident``, ``transient``: MiB that the group's other roles need at least.
    """

    placement: Placement
    limit: float
    sizes: Ints
    durations: dict[str, Floats]
    resident: int
    transient: int
    capacity: int


def worth_pairing(
    problem: Problem, tables: dict[str, RoleTable], role: str, device_type: str
) -> Callable[[RoleTable], Floats]:
    """A function of rows of ``role`` on GPUs of one kind without engine: ``MostSeconds`` of ``candidates.listing``.

    ``tables``: of ``role`` some rows, of the others all.
    """
    instance = make_instance(problem, priced={name: by_gpus(table) for name, table in tables.items()})
    limits, least = quick_limits(instance), instance.relaxed() or instance
    rounding = len(instance.flow.calls) + 1
    arounds = []
    for placement in instance.partitions:
        group = next(group for group in placement if role in group.roles)
        if group.device_type != device_type:
            continue
        if placement not in limits:  # nothing is known, so all may be worth it
            return lambda table: np.full(len(table), np.inf)
        around = _around(problem, least, placement, group, role, limits[placement] + rounding)
        arounds += [] if around is None else [around]
    keys = [call.key for call in problem.flow.calls_of(role) if call.kind == "generate"]

    def most_s(table: RoleTable) -> Floats:
        most = [_most_ticks(least, around, table, keys) for around in arounds]
        return np.asarray(np.max([np.full(len(table), -np.inf), *most], axis=0) * least.tick_s, dtype=np.float64)

    return most_s


def _around(
    problem: Problem, instance: Instance, placement: Placement, group: ColocationGroup, role: str, limit: int
) -> _Around | None:
    """``None`` where another group of the placement fits on no pool."""
    others = {other: instance.sizes[other] for other in placement if other != group}
    if not all(others.values()):
        return None
    sizes = np.asarray(problem.sizes_of(group), dtype=np.int64)
    if not len(sizes):
        return None
    rows = {name: instance.rows_on(name, one.device_type) for one in placement for name in one.roles}
    own = np.full_like(sizes, sizes[-1])
    durations = shortest_around(instance, placement, others | {group: tuple(sizes.tolist())}, rows, group, sizes, own)
    resident, transient = least_of_others(instance, group, role, rows, sizes[-1:])
    capacity = instance.capacity_mib[group.device_type]
    return _Around(placement, float(limit), sizes, durations, resident, transient, capacity)


def _most_ticks(instance: Instance, around: _Around, table: RoleTable, generates: list[str]) -> Floats:
    """Ticks that generation may take at most with each row in this placement; below 0 where it is in no fast plan."""
    table = table.relaxed()
    at = np.searchsorted(around.sizes, table.num_gpus)
    held = at < len(around.sizes)
    at = np.minimum(at, len(around.sizes) - 1)
    durations = {key: np.broadcast_to(ticks, around.sizes.shape)[at] for key, ticks in around.durations.items()}
    durations |= {key: np.floor(s / instance.tick_s) for key, s in table.durations_s.items()}
    durations |= dict.fromkeys(generates, np.full(len(table), LONG)) | {"transition": np.zeros(len(table))}
    ends = makespan(instance, around.placement, durations)
    times = np.maximum(np.rint(ends / LONG), 1.0)
    need = np.maximum(to_mib(table.transient_bytes), around.transient) + to_mib(table.resident_bytes) + around.resident
    fits = held & (need <= around.capacity)
    return np.where(fits, (around.limit - (ends - times * LONG)) / times, -np.inf)
