"""Candidates that were worth having once, priced again under other facts: a search in a tenth of the time.

The rows are those that no other row dominates on GPUs with ``ROOM`` times the memory, so they hold what longer and
shorter work needs too. Times and memory are those of the changed facts, from the functions that every search asks;
only a layout that is worth having under the changed facts alone is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.engine import bytes_apart, priced_engine
from mapper.candidates.table import joined
from mapper.deadline import NEVER, TimeUpError
from mapper.execution_mode import GENERATOR
from mapper.model.instance import make_instance
from mapper.price_families import with_memory
from mapper.search.best import best_choice
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS
from simulator.cost import pricing
from simulator.cost.kv_budget import with_kv_budget
from simulator.cost.role_memory import planned_bytes

if TYPE_CHECKING:
    from mapper.candidates.table import RoleTable
    from mapper.deadline import Deadline
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Placement, Problem
    from mapper.request import SearchRequest
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

    def _alike(self, role: str, device_type: str) -> list[RoleTable]:
        """A role's rows on one kind of GPU by what waits in host memory; one empty table if there are none."""
        table = self.tables[role].take(self.base.rows_on(role, device_type))
        return [table.take(np.flatnonzero(table.offload == i)) for i in np.unique(table.offload)] or [table]

    def instance(self, facts: Facts, partitions: tuple[Placement, ...]) -> Instance:
        """The search over ``partitions`` under changed facts, of the same cluster."""
        tables = {
            role: joined([_repriced(facts.on(k), part) for k in facts.device_types for part in self._alike(role, k)])
            for role in self.tables
        }
        return make_instance(replace(self.problem, facts=facts, partitions=partitions), priced=tables)


def make_shortlist(request: SearchRequest, deadline: Deadline = NEVER) -> Shortlist:
    """Price the whole space of the request's only mode once, whatever the placement; by ``deadline`` its best part."""
    problem = replace(request, placement="any", even=False).problem(request.mode)
    roomy = replace(problem, facts=with_memory(request.facts, lambda num_bytes: int(num_bytes * ROOM)))
    return Shortlist(problem, make_instance(roomy, deadline=deadline))


def faster_rival(
    instance: Instance, won: Placement, rivals: tuple[Placement, ...], deadline: Deadline = NEVER
) -> Placement | None:
    """The placement of ``rivals`` whose best plan beats the best one of ``won``, if any does; both within ``instance``.

    ``None`` too where ``deadline`` is over before it is known.
    """
    own = _search(instance, (won,), None, deadline)
    ticks = None if own is None else own[1]
    best = _search(instance, rivals, None if ticks is None else ticks - 1, deadline)
    if best is None or (ticks is not None and best[1] >= ticks) or deadline.is_over():
        return None
    return tuple(group for group, _ in best[0].pools)


def _search(
    instance: Instance, partitions: tuple[Placement, ...], cutoff: int | None, deadline: Deadline
) -> tuple[Choice, int] | None:
    """The best choice of ``partitions`` and its ticks; ``None`` if nothing fits, or nothing within ``cutoff``."""
    inside = tuple(p for p in partitions if all(instance.sizes[group] for group in p))
    if not inside:
        return None
    only = replace(instance, partitions=inside, sizes={group: instance.sizes[group] for p in inside for group in p})
    try:
        choice, solution = best_choice(only, 0, min(MOST_SEARCH_S, deadline.left_s), cutoff=cutoff)
    except TimeUpError:
        return None
    return None if choice is None else (choice, solution.objective_ticks)


def _repriced(facts: Facts, table: RoleTable) -> RoleTable:
    """The rows, all of one kind, that still deal samples to every rank and fit, at the prices of ``facts``."""
    table = table.take(_dealt(facts, table))
    if not len(table):
        return table
    if table.role == GENERATOR:
        return _repriced_generator(facts, table)
    layouts, shape = table.layouts, facts.roles[table.role].shape
    if layouts.generation is not None:  # what the engine is given follows from the responses
        layouts = replace(layouts, generation=with_kv_budget(facts, shape, layouts.generation))
    options = OFFLOADS if facts.dataflow.is_trained(table.role) else FROZEN_OFFLOADS
    layouts = replace(layouts, offload=options[int(table.offload[0])])
    needs = planned_bytes(facts, table.role, layouts)
    resident, transient = (np.broadcast_to(need, (len(table),)) for need in needs)
    room = facts.memory_room_bytes
    index = np.flatnonzero(resident + transient <= room)
    kept = replace(table, layouts=layouts).take(index)
    costs = pricing.role_costs(facts, table.role, layouts.take(index)) if len(kept) else {}
    seconds = {key: cost.time.s for key, cost in costs.items()} or kept.durations_s
    return replace(kept, durations_s=seconds, resident_bytes=resident[index], transient_bytes=transient[index])


def _repriced_generator(facts: Facts, table: RoleTable) -> RoleTable:
    engine = table.layouts.generation
    assert engine is not None, "the generator generates"
    role = next(role for role in facts.dataflow.roles if facts.dataflow.generates(role))
    rows = priced_engine(facts, role, engine, table.layouts.steady_steps)
    need = bytes_apart(facts, role, rows)
    index = np.flatnonzero(table.resident_bytes + need <= facts.memory_room_bytes)
    seconds = {k: v if k == "transition" else rows.seconds for k, v in table.durations_s.items()}
    layouts = replace(table.layouts, generation=rows.engine)
    return replace(table, durations_s=seconds, transient_bytes=need, layouts=layouts).take(index)


def _dealt(facts: Facts, table: RoleTable) -> Ints:
    """Rows without a data-parallel rank or replica that has no sample."""
    work, x = facts.workload, table.layouts
    keep = np.ones(len(table), dtype=bool)
    for layouts, samples in (
        (x.training, work.minibatch_samples),
        (x.inference, work.num_samples),
        (x.generation, work.num_samples),
    ):
        if layouts is not None:
            keep &= layouts.dp <= samples
    return np.flatnonzero(keep)
