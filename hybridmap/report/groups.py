"""Which ranks of a pool work together, in words that stay short however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plan.groups import Degrees, generation_replica, training_coordinates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulator.plan.plan import Plan, Pool, RolePlan

MOST_GROUPS = 2
"""Groups that are written out; the others follow the same step."""


def group_rows(plan: Plan, pool: Pool) -> list[tuple[str, str, str]]:
    """``(role, what the group shares, GPUs)`` for each role of a pool that splits its model or copies it."""
    out = []
    for entry in plan.roles:
        if entry.pool == pool.name:
            out += [(entry.role, what, _listed(groups, pool.first_gpu)) for what, groups in _training(entry)]
        if entry.generation is not None and plan.generation_pool_of(entry.role).name == pool.name:
            engines = _engines(entry, pool)
            out.append((entry.role, f"{len(engines)} engines", _listed(engines, pool.first_gpu)))
    return out


def _training(entry: RolePlan) -> Iterable[tuple[str, list[list[int]]]]:
    layout = entry.training or entry.inference
    if layout is None or layout.cp > 1:  # a context group's place among the ranks is the engine's own affair
        return
    degrees = Degrees(layout.pp, layout.tp, layout.dp, 1, 1)
    names = ("tensor parallel", "pipeline", "data parallel")
    for axis, (name, size) in enumerate(zip(names, (layout.tp, layout.pp, layout.dp), strict=True)):
        if size > 1:
            yield f"{name} {size}", _grouped(degrees, axis)


def _grouped(degrees: Degrees, axis: int) -> list[list[int]]:
    """Ranks that differ in one coordinate alone."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(degrees.num_ranks):
        at = training_coordinates(rank, degrees)
        found.setdefault(at[:axis] + at[axis + 1 :], []).append(rank)
    return list(found.values())


def _engines(entry: RolePlan, pool: Pool) -> list[list[int]]:
    engine, layout = entry.generation, entry.training
    assert engine is not None, "asked for roles that generate"
    if entry.separate_generation or layout is None or layout.num_gpus != engine.num_gpus or layout.cp > 1:
        size = engine.tp * engine.pp
        return [list(range(i, i + size)) for i in range(0, pool.num_gpus, size)]
    degrees = Degrees(layout.pp, layout.tp, layout.dp, engine.pp, engine.tp)
    found: dict[int, list[int]] = {}
    for rank in range(degrees.num_ranks):
        found.setdefault(generation_replica(rank, degrees), []).append(rank)
    return list(found.values())


def _listed(groups: list[list[int]], first: int) -> str:
    told = [_span([first + rank for rank in group]) for group in groups[:MOST_GROUPS]]
    more = len(groups) - len(told)
    return "; ".join(told) + (f"; and {more:,} more" if more else "")


def _span(gpus: list[int]) -> str:
    """``0-3``, ``0 4 8 12``, ``0 4 ... 60``."""
    if len(gpus) > 1 and gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"{gpus[0]}-{gpus[-1]}"
    if len(gpus) <= 4:
        return " ".join(map(str, gpus))
    return f"{gpus[0]} {gpus[1]} ... {gpus[-1]}"
