"""Candidates that were worth having once, priced again under other facts: a search in a tenth of the time.

The rows are those that no other row dominates on GPUs with ``ROOM`` times the memory, so they hold what longer and
shorter work needs too. Times and memory are those of the changed facts, from the functions that every search asks;
only a layout that is worth having under the changed facts alone is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.best import best_choice
from mapper.instance import make_instance
from mapper.problem import make_problem
from profiles.errors import InputError
from simulator import pricing

if TYPE_CHECKING:
    from mapper.candidates import RoleTable
    from mapper.instance import Instance
    from mapper.pins import AnyPin
    from mapper.problem import Problem, Sets
    from mapper.variables import Choice
    from profiles.records import Ints
    from simulator.facts import Facts

ROOM = 1.5
"""GPUs of the shortlist have this much of the true memory."""

MOST_SEARCH_S = 5.0


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The problem as it was, and its rows by role at the job's own prices, those included that lack memory."""

    problem: Problem
    base: Instance

    @property
    def tables(self) -> dict[str, RoleTable]:
        return self.base.tables

    def instance(self, facts: Facts, partitions: tuple[Sets, ...]) -> Instance:
        """The search over ``partitions`` under changed facts, of the same cluster."""
        tables = {role: _repriced(facts, table) for role, table in self.tables.items()}
        return make_instance(replace(self.problem, facts=facts, partitions=partitions), priced=tables)


def make_shortlist(facts: Facts, pins: tuple[AnyPin, ...] = ()) -> Shortlist:
    """Price the whole space once."""
    problem = make_problem(facts, pins=pins)
    memory = int(facts.device.spec.memory_bytes * ROOM)
    device = facts.device.with_spec(replace(facts.device.spec, memory_bytes=memory))
    roomy = replace(problem, facts=replace(facts, device=device))
    return Shortlist(problem, make_instance(roomy))


def faster_rival(x: Instance, won: Sets, rivals: tuple[Sets, ...]) -> Sets | None:
    """The placement of ``rivals`` whose best plan beats the best one of ``won``, if any does; both within ``x``."""
    own = _search(x, (won,), None)
    ticks = None if own is None else own[1]
    best = _search(x, rivals, None if ticks is None else ticks - 1)
    if best is None or (ticks is not None and best[1] >= ticks):
        return None
    return tuple(roles for roles, _ in best[0].pools)


def _search(x: Instance, partitions: tuple[Sets, ...], cutoff: int | None) -> tuple[Choice, int] | None:
    """The best choice of ``partitions`` and its ticks; ``None`` if nothing fits, or nothing within ``cutoff``."""
    inside = tuple(p for p in partitions if all(x.sizes[roles] for roles in p))
    if not inside:
        return None
    only = replace(x, partitions=inside, sizes={roles: x.sizes[roles] for p in inside for roles in p})
    try:
        choice, solution = best_choice(only, 0, MOST_SEARCH_S, cutoff=cutoff)
    except InputError:  # time is up and nothing was found
        return None
    return None if choice is None else (choice, solution.objective_ticks)


def _repriced(facts: Facts, table: RoleTable) -> RoleTable:
    """The rows that still deal samples to every rank and fit, at the prices of ``facts``."""
    table = table.take(_dealt(facts, table))
    if not len(table):
        return table
    needs = pricing.role_memory(facts, table.role, table.layouts)
    resident, transient = needs.resident_bytes, needs.transient_bytes
    room = facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes
    index = np.flatnonzero(resident + transient <= room)
    kept = table.take(index)
    costs = pricing.role_costs(facts, table.role, kept.layouts) if len(kept) else {}
    seconds = {key: cost.time.s for key, cost in costs.items()} or kept.durations_s
    return replace(kept, durations_s=seconds, resident_bytes=resident[index], transient_bytes=transient[index])


def _dealt(facts: Facts, table: RoleTable) -> Ints:
    """Rows without a data-parallel rank or replica that has no sample."""
    work, x = facts.workload, table.layouts
    keep = np.ones(len(table), dtype=bool)
    for layouts, samples in (
        (x.training, work.minibatch_samples), (x.inference, work.num_samples), (x.generation, work.num_samples),
    ):  # fmt: skip
        if layouts is not None:
            keep &= layouts.dp <= samples
    return np.flatnonzero(keep)
