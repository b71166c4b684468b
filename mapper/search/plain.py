"""The best plain plan: the same search over the rows that ``candidates.plain`` allows, placement by placement.

There is no pipeline where a pool's roles fit without, and that depends on who shares it and on its GPUs: so each
placement has rows of its own. Placements that cannot beat the best plain choice so far are pruned like any other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.plain import StagesNeeded, cramped_rows, plain_rows, stages
from mapper.deadline import TimeUpError
from mapper.model.choices import ticks_of
from mapper.model.variables import Choice
from mapper.search.best import best_choice
from mapper.search.incumbent import NEVER, quick_choice
from mapper.search.prune import prune_beyond, restricted
from mapper.search.tie_breaking import tidy

if TYPE_CHECKING:
    from mapper.deadline import Deadline
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement, Problem
    from profiles.records import Ints

MOST_STAGES = 2**30
"""Above any number of stages: pipelines as long as they are."""

LEAST_S = 0.05
GRACE_S = 1.0
"""How long after the deadline placements are still looked at quickly: without it there would be no plain plan then."""


def best_plain(
    instance: Instance, problem: Problem, seed: int, deadline: Deadline, known: Choice, workers: int = 1
) -> Choice | None:
    """The fastest plain choice, or the best that is found by the deadline; ``None`` if there is none.

    ``known``, the fastest choice of all, is the answer if it is plain.
    """
    rows = plain_of_roles(instance, problem)
    instance = replace(instance, stages_needed=instance.stages_needed or _stages_of_groups(instance, problem, rows))
    short = {group: _short_enough(instance, rows, group) for group in _groups_of(instance)}
    if all(row in short[group][role] for group, _ in known.pools for role in group.roles for row in [known.rows[role]]):
        return known
    inside = {p: _inside(instance, short, p) for p in instance.partitions}
    best: tuple[Choice, int] | None = None
    for few, kept in inside.values():
        if best is not None and deadline.later(GRACE_S).is_over():
            break
        start, _ = quick_choice(few)
        if start is not None:
            best = _better(best, instance, _in_whole(start, kept))
    if best is not None and deadline.is_over():
        left: tuple[Placement, ...] = ()  # they would be quick choices once more
    else:
        left = instance.partitions if best is None else _left(instance, rows, best[1])
    for placement in left:
        few, kept = inside[placement]
        left_s = 0.0 if deadline.is_over() else max(deadline.left_s, LEAST_S)
        try:
            found, _ = best_choice(few, seed, left_s, cutoff=None if best is None else best[1] - 1, workers=workers)
        except TimeUpError:
            continue
        if found is not None:
            best = _better(best, instance, _in_whole(found, kept))
    if best is None:
        return None
    return _by_rule(instance, inside, *best, deadline, workers)


def rows_worth_keeping(
    instance: Instance, problem: Problem
) -> tuple[dict[str, Ints], dict[ColocationGroup, StagesNeeded]]:
    """Rows by role that the best plain choice may have, and the stages that groups need, before anything is left out.

    A quick plain choice says what is sure to be slower.
    """
    rows = plain_of_roles(instance, problem)
    needed = _stages_of_groups(instance, problem, rows)
    counted = replace(instance, stages_needed=needed)
    short = {group: _short_enough(counted, rows, group) for group in needed}
    inside = {p: _inside(instance, short, p) for p in instance.partitions}
    quick = [ticks for few, _ in inside.values() for choice, ticks in [quick_choice(few)] if choice is not None]
    keep = {role: np.zeros(len(table), dtype=np.bool_) for role, table in instance.tables.items()}
    limit = min(quick, default=int(NEVER) // 4) + len(instance.flow.calls) + 1  # ticks by which durations may be off
    for few, of_whole in inside.values():
        _, left = prune_beyond(few, limit)
        for role, mine in of_whole.items():
            keep[role][mine[left[role]]] = True
    return {role: np.flatnonzero(mask) for role, mask in keep.items()}, needed


def _better(best: tuple[Choice, int] | None, instance: Instance, other: Choice) -> tuple[Choice, int]:
    ticks = ticks_of(instance, other)
    return (other, ticks) if best is None or ticks < best[1] else best


def _left(instance: Instance, rows: dict[str, Ints], ticks: int) -> tuple[Placement, ...]:
    """The placements that may have a plain choice of fewer ticks."""
    everywhere = _restricted(instance, rows, instance.partitions)
    return prune_beyond(everywhere, ticks - 1)[0].partitions


def _by_rule(
    instance: Instance,
    inside: dict[Placement, tuple[Instance, dict[str, Ints]]],
    choice: Choice,
    ticks: int,
    deadline: Deadline,
    workers: int,
) -> Choice:
    """Of the plain choices of a placement that are as fast, the one by rule."""
    few, kept = inside[next(p for p in inside if set(p) == {group for group, _ in choice.pools})]
    back = {role: {int(row): i for i, row in enumerate(rows)} for role, rows in kept.items()}
    start = Choice(choice.pools, {role: back[role][row] for role, row in choice.rows.items()})
    return _in_whole(tidy(few, start, ticks, max(deadline.left_s, LEAST_S), workers), kept)


def _in_whole(choice: Choice, kept: dict[str, Ints]) -> Choice:
    return Choice(choice.pools, {role: int(kept[role][row]) for role, row in choice.rows.items()})


def plain_of_roles(instance: Instance, problem: Problem) -> dict[str, Ints]:
    """Rows by role that are plain but for the number of their stages."""
    out = {}
    for role, table in instance.tables.items():
        kinds = [np.zeros(0, dtype=np.int64)]
        for device_type in instance.device_types:
            mine = instance.rows_on(role, device_type)
            kinds.append(mine[plain_rows(problem.facts.on(device_type), table.take(mine))])
        out[role] = np.concatenate(kinds)
    return out


def _inside(
    instance: Instance, short: dict[ColocationGroup, dict[str, Ints]], placement: Placement
) -> tuple[Instance, dict[str, Ints]]:
    """The instance of one placement with rows whose pipelines are short enough, and which rows these are."""
    rows = {role: mine for group in placement for role, mine in short[group].items()}
    return _restricted(instance, rows, (placement,)), rows


def _restricted(instance: Instance, rows: dict[str, Ints], placements: tuple[Placement, ...]) -> Instance:
    """The instance with these rows, these placements, and pools that some row of a role of theirs uses whole."""
    sizes = {}
    for group in dict.fromkeys(group for placement in placements for group in placement):
        used = {int(n) for role in group.roles for n in np.unique(instance.tables[role].num_gpus[rows[role]])}
        there = all(len(rows[role]) for role in group.roles)
        sizes[group] = tuple(n for n in instance.sizes[group] if there and n in used)
    return restricted(replace(instance, partitions=placements, sizes=sizes, bounding={}), rows)


def _short_enough(instance: Instance, rows: dict[str, Ints], group: ColocationGroup) -> dict[str, Ints]:
    """Rows of a group's roles without a pipeline where its roles fit without on as many GPUs as a row uses."""
    needed = instance.stages_needed[group]
    out = {}
    for role in group.roles:
        mine = rows[role]
        at = np.minimum(np.searchsorted(needed.sizes, instance.tables[role].num_gpus[mine]), len(needed.sizes) - 1)
        if not len(needed.sizes):
            out[role] = mine[:0]
            continue
        there = needed.sizes[at] == instance.tables[role].num_gpus[mine]
        trains, generates = (n[mine] for n in stages(instance.tables[role]))
        of_kind = instance.tables[role].device_type[mine] == instance.device_types.index(group.device_type)
        out[role] = mine[there & of_kind & (trains <= needed.training[at]) & (generates <= needed.engine[at])]
    return out


def _stages_of_groups(
    instance: Instance, problem: Problem, rows: dict[str, Ints]
) -> dict[ColocationGroup, StagesNeeded]:
    """For each group the stages that its roles may have; an engine without room to work in counts as none that fits."""
    counted = {}
    for role, table in instance.tables.items():
        training, engine = stages(table)
        engine = engine.copy()  # it is the table's own
        for device_type in instance.device_types:
            mine = instance.rows_on(role, device_type)
            cramped = cramped_rows(problem.facts.on(device_type), role, table.take(mine))
            engine[mine[cramped]] = np.maximum(engine[mine[cramped]], 2)
        counted[role] = (training, engine)
    return {group: _stages_needed(instance, rows, counted, group) for group in _groups_of(instance)}


def _groups_of(instance: Instance) -> dict[ColocationGroup, None]:
    """The groups of all placements, each once: five roles on two kinds of GPU have 62, in a thousand placements."""
    return dict.fromkeys(group for placement in instance.partitions for group in placement)


def _stages_needed(
    instance: Instance, rows: dict[str, Ints], counted: dict[str, tuple[Ints, Ints]], group: ColocationGroup
) -> StagesNeeded:
    """Whether a group's roles fit together without pipelines, first in training, then in the engine, by size.

    They fit when the least hungry layout of each does.
    """
    sizes = np.asarray(instance.sizes[group], dtype=np.int64)
    training, engine = np.full(len(sizes), MOST_STAGES), np.full(len(sizes), MOST_STAGES)
    found = np.zeros(len(sizes), dtype=np.bool_)
    leanest_first = {role: _leanest_first(instance, role, rows[role], group.device_type) for role in group.roles}
    for most in product((1, MOST_STAGES), repeat=2):
        within = {}
        for role, mine in leanest_first.items():
            trains, generates = (n[mine] for n in counted[role])
            within[role] = mine[(trains <= most[0]) & (generates <= most[1])]
        new = ~found & _fit(instance, within, group, sizes)
        training[new], engine[new], found = *most, found | new
    return StagesNeeded(sizes, training, engine)


def _leanest_first(instance: Instance, role: str, rows: Ints, device_type: str) -> Ints:
    """Those of a role's rows that are on a kind of GPU, by their GPUs, of as many the least hungry first."""
    mine = rows[instance.tables[role].device_type[rows] == instance.device_types.index(device_type)]
    need = instance.resident_mib[role][mine] + instance.transient_mib[role][mine]
    return np.asarray(mine[np.lexsort((need, instance.tables[role].num_gpus[mine]))], dtype=np.int64)


def _fit(instance: Instance, rows: dict[str, Ints], group: ColocationGroup, sizes: Ints) -> np.ndarray:
    """On which sizes the least hungry of these rows fit together; ``rows`` are leanest first."""
    resident, transient = np.zeros(len(sizes), dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
    there = np.ones(len(sizes), dtype=np.bool_)
    for role in group.roles:
        mine = rows[role]
        if not len(mine):
            return np.zeros(len(sizes), dtype=np.bool_)
        gpus = instance.tables[role].num_gpus[mine]
        at = np.minimum(np.searchsorted(gpus, sizes, side="left"), len(mine) - 1)
        there &= gpus[at] == sizes
        resident = resident + instance.resident_mib[role][mine[at]]
        transient = np.maximum(transient, instance.transient_mib[role][mine[at]])
    return np.asarray(there & (resident + transient <= instance.capacity_mib[group.device_type]), dtype=np.bool_)
