"""A plan that is known already, found among the rows of an instance: a start for the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapper.best import fits
from mapper.variables import Choice

if TYPE_CHECKING:
    from mapper.instance import Instance
    from simulator.plan import Plan


def choice_of_plan(x: Instance, plan: Plan) -> Choice | str:
    """The choice that builds ``plan``, or in one line why there is none."""
    roles = tuple(x.tables)
    if {entry.role for entry in plan.roles} != set(roles):
        return f"it has the roles {', '.join(entry.role for entry in plan.roles)}, the job has {', '.join(roles)}"
    if any(entry.separate_generation for entry in plan.roles) or plan.schedule != "sync":
        return "it generates on a pool of its own, which is not searched"
    rows: dict[str, int] = {}
    for entry in plan.roles:
        layouts = (entry.training, entry.inference, entry.generation)
        table = x.tables[entry.role]
        row = next((i for i in range(len(table)) if table.records(i) == layouts), None)
        if row is None:
            return f"the layouts of its {entry.role} are not among those searched (pinned, or others are as good)"
        rows[entry.role] = row
    sets = {frozenset(group): group for group in x.sizes}
    pools = tuple((sets.get(frozenset(pool.roles), pool.roles), pool.num_gpus) for pool in plan.pools)
    choice = Choice(pools, rows)
    if not fits(x, choice):
        return (
            f"its pools ({plan.placement} on {' + '.join(str(n) for _, n in pools)} GPUs) are not among those searched"
        )
    return choice
