"""What bounds the layouts that time did not suffice to price: all else as fast as the GPUs that they leave allow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mapper.model.makespan import makespan
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mapper.candidates.floors import Unpriced
    from mapper.candidates.table import RoleTable
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement
    from profiles.records import Floats, Ints

NONE_RUNS = 2**40
"""Stands for "no row", above any sum of ticks or MiB that is compared with it."""


def least_up_to(num_gpus: Ints, values: Ints, sizes: Ints) -> Ints:
    """For each of ``sizes`` the least of ``values`` among the rows that run on it; ``NONE_RUNS`` if no row does."""
    (found,) = least_of_each(num_gpus, [values], sizes)
    return found


def least_of_each(num_gpus: Ints, columns: Iterable[Ints], sizes: Ints) -> list[Ints]:
    """``least_up_to`` of several columns of the same rows, which are put in order once."""
    order = num_gpus.argsort(kind="stable")
    held, found = num_gpus[order].searchsorted(sizes, side="right"), []
    for values in columns:
        least = np.full(len(order) + 1, NONE_RUNS, dtype=np.int64)
        np.minimum.accumulate(values[order], out=least[1:])
        found.append(least[held])
    return found


def unpriced_ticks(instance: Instance, tables: Mapping[str, RoleTable]) -> int | None:
    """Ticks that no plan with a layout that was not priced is below; ``None`` where all were priced.

    ``instance`` has the priced rows, each as good as what it stands for. A plan that it lacks has an unpriced layout of
    some role; whoever shares its pool may have all GPUs, the others what it leaves, each call its best row there.
    """
    unpriced = {role: table.unpriced for role, table in tables.items() if table.unpriced is not None}
    if not unpriced:
        return None
    ends = [
        _least_ticks(instance, placement, group, role, unpriced)
        for placement in instance.partitions
        for group in placement
        for role in group.roles
        if role in unpriced
    ]
    return min(ends)


def _least_ticks(
    instance: Instance, placement: Placement, own: ColocationGroup, role: str, unpriced: Mapping[str, Unpriced]
) -> int:
    """The same of one placement and one role."""
    here = unpriced[role]
    of_kind = np.flatnonzero(here.device_type == instance.device_types.index(own.device_type))
    taken = here.num_gpus[of_kind]
    if not len(taken):
        return NONE_RUNS
    durations = {key: ticks.astype(np.float64)[0] for key, ticks in instance.ticks[CONTROLLER].items()}
    for group in placement:
        left = instance.gpus[group.device_type] - (taken if group.device_type == own.device_type else 0)
        room = np.broadcast_to(instance.gpus[own.device_type] if group == own else left, taken.shape)
        for other in group.roles:
            durations |= _shortest(instance, group, other, room, unpriced.get(other))
    durations |= {key: np.floor(seconds[of_kind] / instance.tick_s) for key, seconds in here.least_s.items()}
    return int(np.min(makespan(instance, placement, durations)))


def _shortest(
    instance: Instance, group: ColocationGroup, role: str, room: Ints, unpriced: Unpriced | None
) -> dict[str, Floats]:
    """Ticks that each call of a role takes at least on so many GPUs, in rows that were priced or not."""
    rows = instance.rows_on(role, group.device_type)
    ticks = instance.ticks[role]
    found = least_of_each(instance.tables[role].num_gpus[rows], [of_call[rows] for of_call in ticks.values()], room)
    least = dict(zip(ticks, found, strict=True))
    if unpriced is None:
        return {key: ticks.astype(np.float64) for key, ticks in least.items()}
    of_kind = np.flatnonzero(unpriced.device_type == instance.device_types.index(group.device_type))
    at, ends = unpriced.num_gpus[of_kind], {key: s[of_kind] for key, s in unpriced.least_s.items()}
    floors = {key: least_up_to(at, np.floor(s / instance.tick_s).astype(np.int64), room) for key, s in ends.items()}
    return {key: np.minimum(ticks, floors[key]).astype(np.float64) for key, ticks in least.items()}


def in_other_ticks(ticks: int | None, tick_s: float, other_tick_s: float) -> int | None:
    """No more than as many ticks of another length."""
    return None if ticks is None else math.floor(ticks * tick_s / other_tick_s)
