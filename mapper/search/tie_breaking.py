"""Of all choices that are equally fast, one: the fewest GPUs, the least work, the most free memory.

Many choices end in the same tick, and which of them a solver meets first depends on its seed and its workers. This
asks for one by rule, so that a plan is the same however it was found, and wastes neither GPUs nor work.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from mapper.model.choices import senders, ticks_of, transfer_ticks
from mapper.model.cp_sat import cp_model
from mapper.model.solver import build_model, configured, solved
from mapper.model.variables import Choice, extract, hint
from mapper.search.prune import prune_beyond, restricted

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.variables import Variables

TIE_BITS = 16
"""What is still equal is told apart by fixed random weights of this many bits, one for each row and pool size."""

STEP_MIB = 64
"""Memory that pools have free is compared in steps of this size."""

MOST_BITS = 61
"""An objective of CP-SAT has to stay below 2**63."""


def tidy(instance: Instance, choice: Choice, ticks: int, time_limit_s: float, workers: int = 1) -> Choice:
    """The choice by rule among those of at most ``ticks``; ``choice``, which is one, if time runs out."""
    if instance.neighbours is not None:
        alone = replace(instance, neighbours=None)
        found = tidy(alone, choice, ticks_of(alone, choice), time_limit_s, workers)
        return found if ticks_of(instance, found) <= ticks else choice
    instance, actor_rows = _at_this_transfer(instance, choice)
    back = {} if actor_rows is None else {"actor": {int(row): i for i, row in enumerate(actor_rows)}}
    mine = Choice(choice.pools, {r: back[r][i] if r in back else i for r, i in choice.rows.items()})
    pruned, kept = prune_beyond(instance, ticks)
    inside = {role: {int(row): i for i, row in enumerate(rows)} for role, rows in kept.items()}
    start = Choice(mine.pools, {role: inside[role][row] for role, row in mine.rows.items()})
    model, v = build_model(pruned)
    model.add(v.makespan <= ticks)
    model.minimize(_rule(pruned, v, _held(model, pruned, v)))
    hint(model, v, start)
    solver = configured(0, time_limit_s, workers)
    if solved(solver, model) != cp_model.OPTIMAL:
        return choice
    found = extract(solver, v)
    rows = {role: int(kept[role][i]) for role, i in found.rows.items()}
    if actor_rows is not None:
        rows["actor"] = int(actor_rows[rows["actor"]])
    return Choice(found.pools, rows)


def _at_this_transfer(instance: Instance, choice: Choice) -> tuple[Instance, np.ndarray | None]:
    """The instance with the transfer's price fixed, and which rows of the actor it has: those of as many senders."""
    if instance.sync is None:
        return instance, None
    row = choice.rows["actor"]
    device_type = instance.tables["actor"].device_type[row]
    rows = np.flatnonzero(
        (senders(instance) == senders(instance)[row]) & (instance.tables["actor"].device_type == device_type)
    )
    exact = instance.sync.ticks(
        instance.tables[GENERATOR], instance.device_types[int(device_type)], int(senders(instance)[row])
    )
    assert exact[choice.rows[GENERATOR]] == transfer_ticks(instance, choice)
    ticks = instance.ticks | {GENERATOR: instance.ticks[GENERATOR] | {"transition": exact}}
    return restricted(replace(instance, ticks=ticks, sync=None), {"actor": rows}), rows


def _held(model: cp_model.CpModel, instance: Instance, v: Variables) -> list[cp_model.IntVar]:
    """What the fullest GPU of each pool holds, in steps; 0 for a group that has no pool."""
    held = []
    for group, chosen in v.shared.items():
        peak = model.new_int_var(0, instance.capacity_mib[group.device_type] // STEP_MIB + 1, "held")
        resident = cp_model.LinearExpr.sum([v.resident[role] for role in group.roles])
        for role in group.roles:
            model.add(peak * STEP_MIB >= resident + v.transient[role]).only_enforce_if(chosen)
        held.append(peak)
    return held


def _rule(instance: Instance, v: Variables, held: list[cp_model.IntVar]) -> cp_model.LinearExpr:
    """What the pools count, then the ticks of all calls, what they hold, a fixed weight of every row and pool size."""
    longest = sum(int(t.max(initial=0)) for calls in instance.ticks.values() for t in calls.values()) + 1
    fullest = max(instance.capacity_mib.values()) // STEP_MIB + 2
    steps = (fullest * len(instance.flow.roles)).bit_length()  # no more pools than roles
    bits = min(TIE_BITS, MOST_BITS - steps - (longest * (instance.budget + 1)).bit_length())
    draw = random.Random(0)
    spent = cp_model.LinearExpr.sum(
        [instance.weight[group.device_type] * n * var for (group, n), var in v.pool.items()]
    )
    ties = [draw.getrandbits(max(bits - 4, 0)) * var for var in v.pool.values()]
    ties += [draw.getrandbits(max(bits - 4, 0)) * var for picks in v.pick.values() for var in picks]
    work = cp_model.LinearExpr.sum(list(v.duration.values()))
    memory = cp_model.LinearExpr.sum(held)
    rule: cp_model.LinearExpr = ((spent * longest + work) * 2**steps + memory) * 2**bits + cp_model.LinearExpr.sum(ties)
    return rule
