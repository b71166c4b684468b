"""The search as integers: ready for the solver and for the oracle, no preprocessing left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import RoleTable, role_table, to_mib
from profiles.units import MIB
from simulator.dataflow import CONTROLLER, Dataflow
from simulator.pricing import controller_cost, is_controller

if TYPE_CHECKING:
    from mapper.problem import Problem, Sets
    from profiles.records import Floats, Ints

TICKS_PER_ITERATION = 1_000_000
"""A tick is the power of ten just below this fraction of the iteration's shortest possible longest call."""

NONE_RUNS = 2**40
"""Stands for "no row", above any sum of ticks or MiB that is compared with it."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem with priced candidates, times in ticks and memory in MiB.

    Parameters
    ----------
    flow, partitions, sizes, num_gpus, equal_sizes
        As in ``Problem``; ``sizes`` by set: pool sizes on which the set can fit at all.
    tables
        Candidates by role.
    ticks
        Duration in ticks by role and call key, each ``[C]``; the controller's calls under ``controller``, ``[1]``.
    resident_mib, transient_mib
        Memory needs by role, each ``[C]``, rounded up.
    capacity_mib
        Memory of a GPU less the reserve, rounded down.
    tick_s
        Length of a tick. Each duration is rounded to the nearest tick, so an iteration is off by at most
        ``rounding_s``.
    """

    flow: Dataflow
    partitions: tuple[Sets, ...]
    sizes: dict[tuple[str, ...], tuple[int, ...]]
    num_gpus: int
    equal_sizes: bool
    tables: dict[str, RoleTable]
    ticks: dict[str, dict[str, Ints]]
    resident_mib: dict[str, Ints]
    transient_mib: dict[str, Ints]
    capacity_mib: int
    tick_s: float

    @property
    def rounding_s(self) -> float:
        """How far rounding can move an iteration: half a tick per call on the path."""
        return self.tick_s * len(self.flow.calls) / 2

    @property
    def num_candidates(self) -> int:
        """Candidates after pruning, over all roles."""
        return sum(len(table) for table in self.tables.values())

    def rows(self, role: str, num_gpus: int) -> Ints:
        """Rows of a role's table that run on a pool of ``num_gpus``."""
        return np.flatnonzero(self.tables[role].num_gpus <= num_gpus)


def make_instance(problem: Problem, prune: bool = True, priced: dict[str, RoleTable] | None = None) -> Instance:
    """Price, filter, prune and round everything the search may choose from; ``priced`` are tables priced before."""
    facts = problem.facts
    tables = priced or {role: role_table(problem, role, prune) for role in problem.roles}
    seconds: dict[str, dict[str, np.ndarray]] = {role: dict(table.durations_s) for role, table in tables.items()}
    seconds[CONTROLLER] = {
        call.key: np.asarray([float(controller_cost(facts, call).time.s)])
        for call in facts.dataflow.calls
        if is_controller(call)
    }
    tick = _tick_s(seconds)
    resident = {role: to_mib(table.resident_bytes) for role, table in tables.items()}
    transient = {role: to_mib(table.transient_bytes) for role, table in tables.items()}
    capacity = int((facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes) // MIB)
    sizes = {roles: _sizes_that_fit(problem, roles, tables, resident, transient, capacity) for roles in problem.sets}
    return Instance(
        flow=facts.dataflow, partitions=problem.partitions, sizes=sizes, num_gpus=problem.num_gpus,
        equal_sizes=problem.equal_sizes, tables=tables,
        ticks={role: {k: _to_ticks(v, tick) for k, v in calls.items()} for role, calls in seconds.items()},
        resident_mib=resident, transient_mib=transient, capacity_mib=capacity, tick_s=tick,
    )  # fmt: skip


def _to_ticks(seconds: Floats, tick_s: float) -> Ints:
    return np.asarray(np.rint(seconds / tick_s), dtype=np.int64)


def _tick_s(seconds: dict[str, dict[str, np.ndarray]]) -> float:
    shortest = [float(v.min()) for calls in seconds.values() for v in calls.values() if len(v)]
    return float(10.0 ** math.floor(math.log10(max(*shortest, 1e-6) / TICKS_PER_ITERATION)))


def least_up_to(num_gpus: Ints, values: Ints, sizes: Ints) -> Ints:
    """For each of ``sizes`` the least of ``values`` among the rows that run on it; ``NONE_RUNS`` if no row does."""
    order = np.argsort(num_gpus, kind="stable")
    least = np.concatenate([[NONE_RUNS], np.minimum.accumulate(values[order])])
    return np.asarray(least[np.searchsorted(num_gpus[order], sizes, side="right")], dtype=np.int64)


def _sizes_that_fit(
    problem: Problem, roles: tuple[str, ...], tables: dict[str, RoleTable],
    resident: dict[str, Ints], transient: dict[str, Ints], capacity: int,
) -> tuple[int, ...]:  # fmt: skip
    """Pool sizes where even the least hungry configurations of the set fit side by side (a necessary condition).

    Without a size that no role of the set gains a row from: the next smaller pool does the same. But sets that must
    agree on a size, by ``equal_sizes`` or by a pin, may need just that one.
    """
    sizes = np.asarray(problem.sizes_of(roles), dtype=np.int64)
    gpus = {role: tables[role].num_gpus for role in roles}
    need = sum(least_up_to(gpus[role], resident[role], sizes) for role in roles)
    need = need + np.max([least_up_to(gpus[role], transient[role], sizes) for role in roles], axis=0)
    keep = need <= capacity
    if not problem.equal_sizes and len(sizes) == len(problem.sizes):
        keep &= np.isin(sizes, np.concatenate(list(gpus.values())))
    return tuple(sizes[keep].tolist())
