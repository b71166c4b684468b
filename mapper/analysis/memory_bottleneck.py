"""What keeps a plan from a faster layout of one role: the memory that the nearest such layout lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from mapper.model.makespan import makespan
from mapper.problem import ColocationGroup
from mapper.search.place import offload_of, placement_of
from simulator.cost.pricing import call_cost
from simulator.cost.role_layouts import layouts_of
from simulator.pool_memory import memories_on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mapper.analysis.shortlist import Shortlist
    from mapper.candidates.table import RoleTable
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool, RolePlan
    from simulator.plan.timeline import Timeline

WORTHWHILE = 1e-3
"""A configuration counts as better when it saves this share of the iteration."""


@dataclass(frozen=True)
class Better:
    """A faster configuration of one role, the others as planned, and the memory per GPU that it lacks."""

    entry: RolePlan
    short_bytes: float
    iteration_s: float


@dataclass(frozen=True)
class MemoryLimit:
    """What fills a pool's fullest GPU; ``better`` is the faster configuration that lacks least, if memory binds."""

    pool: str
    used_bytes: int
    capacity_bytes: int
    usable_bytes: int | None
    call: str
    classes: Mapping[str, int]
    better: Better | None


def memory_limit(facts: Facts, plan: Plan, pool: Pool, timeline: Timeline, shortlist: Shortlist) -> MemoryLimit:
    """What fills a pool, and the nearest faster configuration of one of its roles that does not fit.

    Engines on a pool of their own count as a role there, and the trainer that sends them its weights as another.
    """
    peak = timeline.memory[pool.name]
    members = plan.members(pool)
    better = [found for role in members if (found := _better(facts, plan, pool, role, timeline, shortlist))]
    return MemoryLimit(
        pool=pool.name,
        used_bytes=peak.used_bytes,
        capacity_bytes=peak.capacity_bytes,
        usable_bytes=peak.usable_bytes,
        call=peak.peak_call,
        classes=peak.classes,
        better=min(better, key=lambda b: b.short_bytes, default=None),
    )


def _better(facts: Facts, plan: Plan, pool: Pool, role: str, timeline: Timeline, shortlist: Shortlist) -> Better | None:
    """The row of ``role`` that makes the iteration faster, does not fit beside the others, and lacks least."""
    x, here = shortlist.base, facts.on(pool.device)
    of_table = x.rows(role, ColocationGroup(plan.members(pool), pool.device), pool.num_gpus)
    table = x.tables[role].take(of_table)
    if not len(table):
        return None
    generator = next(entry.role for entry in plan.roles if entry.generation is not None)
    name = generator if role == GENERATOR else role
    needs = [need for other, need in memories_on(plan, pool, facts).items() if other != name]
    kept = sum(float(need.resident_bytes[0]) for need in needs if need.resident)
    beside = max((float(need.transient_bytes[0]) for need in needs if need.transient), default=0.0)
    short = table.resident_bytes + np.maximum(table.transient_bytes, beside) + kept - here.memory_room_bytes
    durations = {span.call: np.asarray(span.duration_s) for span in timeline.spans} | dict(table.durations_s)
    if GENERATOR in x.tables and name == generator:
        durations["transition"] = _transfer_s(facts, plan, generator, role, table)
    ends = makespan(x, placement_of(plan), durations)
    rows = np.flatnonzero((short > 0) & (ends < timeline.iteration_s * (1 - WORTHWHILE)))
    if not len(rows):
        return None
    row = int(rows[np.argmin(short[rows])])
    entry = _entry(shortlist, plan.role(name), role, int(of_table[row]))
    return Better(entry, float(short[row]), float(ends[row]))


def _entry(shortlist: Shortlist, planned: RolePlan, role: str, row: int) -> RolePlan:
    """The planned layouts of a role with those of a row in their place; a row of the generator has the engine's."""
    training, inference, generation = shortlist.base.tables[role].records(row)
    if role == GENERATOR:
        return planned.model_copy(update={"generation": generation})
    offload = offload_of(shortlist.base, shortlist.problem, role, row)
    update = {"training": training, "inference": inference, "offload": offload}
    engine = planned.generation if planned.separate_generation else generation
    return planned.model_copy(update=update | {"generation": engine})


def _transfer_s(facts: Facts, plan: Plan, generator: str, role: str, table: RoleTable) -> Floats:
    """Seconds of the transfer of weights for each row of one end of it, the other end as planned."""
    entry, num = plan.role(generator), len(table)
    planned = layouts_of(entry, plan)
    as_often = np.zeros(num, dtype=np.int64)
    pairs = planned.take(as_often)
    if role == GENERATOR:
        pairs = replace(pairs, generation=table.layouts.generation)
    else:
        pairs = replace(pairs, training=table.layouts.training, inference=table.layouts.inference)
    call = next(call for call in facts.dataflow.calls if call.kind == "transition")
    home, there = (facts.on(p.device) for p in (plan.pool_of(generator), plan.generation_pool_of(generator)))
    return np.broadcast_to(call_cost(home, call, pairs, engine_facts=there).time.s, (num,))
