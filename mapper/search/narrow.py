"""The instance of a search for the fastest plan: what is sure to be slower goes before it is compared row by row.

On large clusters most of what is priced runs on numbers of GPUs that nothing fast can use, and to compare all of it
with each other takes longer than to price it. A quick choice of each placement, on a few pool sizes, says what its
best plan takes at most; what that leaves out is in no placement's best plan. Plain
plans have a quick choice of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.listing import tables_by_step, worth_keeping
from mapper.candidates.table import by_gpus
from mapper.model.instance import make_instance
from mapper.model.unpriced import in_other_ticks
from mapper.progress import tell
from mapper.search.incumbent import NEVER, quick_limits
from mapper.search.plain import rows_worth_keeping
from mapper.search.prune import prune_each_beyond
from mapper.search.worth_pairing import worth_pairing

if TYPE_CHECKING:
    from mapper.candidates.plain import StagesNeeded
    from mapper.candidates.table import RoleTable
    from mapper.deadline import Deadline
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Problem
    from profiles.records import Ints

FEW_ROWS = 20_000
"""Rows of all roles that are soon compared with each other."""


def fastest_instance(problem: Problem, deadline: Deadline) -> Instance:
    """As ``make_instance``, without what is in no placement's fastest plan, nor in the fastest plain one."""
    whole = tables_by_step(problem, problem.roles, deadline=deadline, worth_pairing=partial(worth_pairing, problem))
    if sum(map(len, whole.values())) <= FEW_ROWS:
        return make_instance(problem, priced=_worth_keeping(problem, whole))
    tell("looking for a quick plan of each placement")
    whole = {role: by_gpus(table) for role, table in whole.items()}
    instance = make_instance(problem, priced=whole)
    kept = _within_quick_choices(instance)
    needed: dict[ColocationGroup, StagesNeeded] = {}
    if problem.options.prefer_plain is not None:
        plain, needed = rows_worth_keeping(instance, problem)
        kept = {role: np.union1d(rows, plain[role]) for role, rows in kept.items()}
    few = _worth_keeping(problem, {role: whole[role].take(rows) for role, rows in kept.items()})
    small = make_instance(problem, priced=few)
    unpriced = in_other_ticks(instance.unpriced_ticks, instance.tick_s, small.tick_s)  # beside all rows, not these few
    return replace(small, stages_needed=needed, unpriced_ticks=unpriced)


def _worth_keeping(problem: Problem, tables: dict[str, RoleTable]) -> dict[str, RoleTable]:
    return {role: worth_keeping(problem, table) for role, table in tables.items()}


def _within_quick_choices(instance: Instance) -> dict[str, Ints]:
    """The rows of each role that some placement may use in a plan as fast as a quick choice of it."""
    rounding = len(instance.flow.calls) + 1  # ticks by which durations may be off, and what is not listed gains
    limits = {placement: ticks + rounding for placement, ticks in quick_limits(instance).items()}
    least = instance.relaxed() or instance
    return prune_each_beyond(least, dict.fromkeys(least.partitions, int(NEVER) // 4) | limits)[1]
