"""Other plans beside the best, each different in something that matters and the best of those that differ in it.

What matters: who shares GPUs with whom, how many GPUs each pool has, in which degrees a trained role trains, in which
the actor generates. Every other placement has its best plan; of the best plan's own placement each of these points
has the best plan in which it is another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.table import degrees_of
from mapper.deadline import TimeUpError
from mapper.execution_mode import GENERATOR
from mapper.model.choices import ticks_of
from mapper.model.variables import Choice
from mapper.search.best import best_choice
from mapper.search.prune import restricted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapper.deadline import Deadline
    from mapper.model.instance import Instance

LEAST_S = 0.05

TRAINED, ENGINE = slice(0, 5), slice(5, 10)
"""Columns of ``degrees_of`` for a role that has both."""


def alternatives(
    instance: Instance, best: Choice, most: int, seed: int, deadline: Deadline, workers: int = 1
) -> tuple[Choice, ...]:
    """At most so many choices beside ``best``, fastest first; those that time sufficed to find."""
    found: dict[object, tuple[int, Choice]] = {}
    for inside, kept in _spaces(instance, best):
        if deadline.is_over():
            break
        try:
            choice, _ = best_choice(inside, seed, max(deadline.left_s, LEAST_S), workers=workers)
        except TimeUpError:
            continue
        if choice is not None:
            whole = Choice(choice.pools, {r: int(kept[r][i]) if r in kept else i for r, i in choice.rows.items()})
            found.setdefault(_signature(instance, whole), (ticks_of(instance, whole), whole))
    found.pop(_signature(instance, best), None)
    ordered = sorted(found.values(), key=lambda one: one[0])
    return tuple(choice for _, choice in ordered[:most])


def _spaces(instance: Instance, best: Choice) -> Iterator[tuple[Instance, dict[str, np.ndarray]]]:
    """Each part of the search that an alternative is the best of, and the rows of tables that are cut."""
    mine = {group for group, _ in best.pools}
    own = tuple(p for p in instance.partitions if set(p) == mine)
    for placement in instance.partitions:
        if placement not in own:
            yield _of(instance, placement), {}
    here = _of(instance, own[0])
    for group, n in best.pools:
        others = tuple(size for size in here.sizes[group] if size != n)
        yield replace(here, sizes=here.sizes | {group: others}), {}
    for role, columns in _points(instance):
        degrees = degrees_of(instance.tables[role].layouts)[:, columns]
        rows = {role: np.flatnonzero(np.any(degrees[:, 1:] != degrees[best.rows[role], 1:], axis=1))}
        if len(rows[role]):
            yield restricted(here, rows), rows


def _of(instance: Instance, placement: tuple[object, ...]) -> Instance:
    sizes = {group: n for group, n in instance.sizes.items() if group in placement}
    return replace(instance, partitions=tuple(p for p in instance.partitions if p == placement), sizes=sizes)


def _points(instance: Instance) -> Iterator[tuple[str, slice]]:
    """Roles and the columns of their degrees that matter."""
    for role, table in instance.tables.items():
        if role == GENERATOR:
            yield role, TRAINED
            continue
        if table.layouts.training is not None:
            yield role, TRAINED
        if table.layouts.generation is not None:
            yield role, ENGINE


def _signature(instance: Instance, choice: Choice) -> object:
    degrees = [
        tuple(degrees_of(instance.tables[role].layouts)[choice.rows[role], columns].tolist())
        for role, columns in _points(instance)
    ]
    return (frozenset(choice.pools), *degrees)
