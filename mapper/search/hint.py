"""A plan that is known already, found among the rows of an instance: a start for the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from mapper.model.choices import fits
from mapper.model.variables import Choice
from mapper.search.place import placement_of
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from simulator.plan.plan import GenerationLayout, Offload, ParallelLayout, Plan

    Layouts3 = tuple[ParallelLayout | None, ParallelLayout | None, GenerationLayout | None]


def choice_of_plan(instance: Instance, plan: Plan) -> Choice | str:
    """The choice that builds ``plan``, or in one line why there is none."""
    roles = tuple(role for role in instance.tables if role != GENERATOR)
    if {entry.role for entry in plan.roles} != set(roles):
        return f"it has the roles {', '.join(entry.role for entry in plan.roles)}, the job has {', '.join(roles)}"
    if any(entry.separate_generation for entry in plan.roles) != (GENERATOR in instance.tables):
        return "it generates on a dedicated pool, or this search does and it does not"
    rows: dict[str, int] = {}
    for entry in plan.roles:
        layouts: Layouts3 = (entry.training, entry.inference, entry.generation)
        if entry.separate_generation:
            rows[GENERATOR] = _row(
                instance, GENERATOR, (None, None, entry.generation), plan.generation_pool_of(entry.role).device
            )
            layouts = (entry.training, entry.inference, None)
        rows[entry.role] = _row(instance, entry.role, layouts, plan.pool_of(entry.role).device, entry.offload)
    if missing := [role for role, row in rows.items() if row < 0]:
        return f"the layouts of its {missing[0]} are not among those searched (pinned, or others are as good)"
    sizes = tuple(pool.num_gpus for pool in plan.pools)
    choice = Choice(tuple(zip(placement_of(plan), sizes, strict=True)), rows)
    if not fits(instance, choice):
        return f"its pools ({plan.placement} on {' + '.join(map(str, sizes))} GPUs) are not among those searched"
    return choice


def _row(instance: Instance, role: str, layouts: Layouts3, device_type: str, offload: tuple[Offload, ...] = ()) -> int:
    """The row of a role's table with these layouts on this kind of GPU; -1 if there is none."""
    table, options = instance.tables[role], OFFLOADS if instance.flow.is_trained(role) else FROZEN_OFFLOADS
    known = (
        instance.rows_on(role, device_type)
        if device_type in instance.device_types and offload in options
        else np.zeros(0, dtype=np.int64)
    )
    known = known[table.offload[known] == options.index(offload)] if len(known) else known
    return next((i for i in known.tolist() if table.records(i) == layouts), -1)
