"""The best choice of an instance as it is priced: a quick one, what cannot beat it pruned away, CP-SAT to the proof."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.pareto import non_dominated_by_group
from mapper.deadline import TimeUpError
from mapper.model.choices import fits, ticks_of
from mapper.model.solver import Solution, solve
from mapper.model.variables import Choice
from mapper.progress import tell
from mapper.search.incumbent import greedy, polished, quick_choice, thinned
from mapper.search.multipliers import prune_by_prices
from mapper.search.prune import prune_beyond, restricted

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from profiles.records import Ints

LEAST_S = 0.05
"""Seconds that the solver gets at least where a choice is still to be found."""


def best_as_priced(
    instance: Instance,
    seed: int,
    time_limit_s: float,
    known: Choice | None = None,
    cutoff: int | None = None,
    workers: int = 1,
    most_rows: int | None = None,
) -> tuple[Choice | None, Solution]:
    """As ``best.best_choice``, where every duration is that of one row.

    ``most_rows``: where more may be in something faster than what is found, that is the answer, with a bound.
    """
    start, limit = _start(instance, known)
    if time_limit_s <= 0 and start is not None and (cutoff is None or limit <= cutoff):
        return start, Solution("feasible", start, limit, min(instance.floor_ticks, limit), 0.0)
    time_limit_s = max(time_limit_s, LEAST_S)
    if cutoff is not None and (start is None or limit > cutoff):
        return _within(instance, seed, time_limit_s, cutoff, workers)
    if start is None:
        solution = solve(instance, seed=seed, time_limit_s=time_limit_s, workers=workers)
        return solution.choice, solution
    tell("leaving out what cannot be faster", best_s=limit * instance.tick_s)
    while True:
        start, limit = _closer(instance, start, limit)
        pruned, kept = prune_beyond(instance, limit)
        pruned, kept = _without_beaten(pruned, kept, start)
        pruned, kept = _within_prices(pruned, kept, limit)
        back = {role: {int(row): i for i, row in enumerate(rows)} for role, rows in kept.items()}
        inside = Choice(start.pools, {role: back[role][row] for role, row in start.rows.items()})
        inside, closer = (inside, limit) if instance.neighbours is not None else polished(pruned, inside, limit)
        if closer >= limit:
            break
        start, limit = _in_whole(inside, kept), closer
    tell("proving that nothing is faster", best_s=limit * instance.tick_s)
    found = _faster(pruned, seed, time_limit_s, limit, workers, most_rows)
    if found.choice is None:
        return start, replace(found, choice=start, objective_ticks=limit)
    return _in_whole(found.choice, kept), found


def _faster(
    instance: Instance, seed: int, time_limit_s: float, limit: int, workers: int, most_rows: int | None
) -> Solution:
    """The best choice of fewer than ``limit`` ticks and its proof, or none and a bound of at most ``limit``."""
    began = time.perf_counter()
    left, kept, least = prune_by_prices(instance, limit - 1)
    if not left.partitions:
        return Solution("optimal", None, limit, limit, time.perf_counter() - began)
    if most_rows is not None and sum(map(len, left.tables.values())) > most_rows:
        return Solution("feasible", None, limit, least, time.perf_counter() - began)
    try:
        found = solve(left, seed=seed, time_limit_s=time_limit_s, most_ticks=limit - 1, workers=workers)
    except TimeUpError:
        return Solution("feasible", None, limit, least, time.perf_counter() - began)
    if found.choice is None:
        return replace(found, status="optimal", bound_ticks=limit)
    bound = min(max(least, found.bound_ticks), found.objective_ticks)
    return replace(found, choice=_in_whole(found.choice, kept), bound_ticks=bound)


def _without_beaten(instance: Instance, kept: dict[str, Ints], start: Choice) -> tuple[Instance, dict[str, Ints]]:
    """A pruned instance without rows that another beats in ticks and MiB, those of ``start`` aside.

    Tables also have rows that only a plain plan, or another plan beside the best, has a use for.
    """
    rows = {}
    for role, table in instance.tables.items():
        resident, transient = instance.resident_mib[role], instance.transient_mib[role]
        columns = [table.num_gpus, *instance.ticks[role].values(), resident, resident + transient]
        best = non_dominated_by_group(table.device_type, np.stack(columns, axis=1).astype(np.float64))
        own = np.flatnonzero(kept[role] == start.rows[role]) if role in start.rows else best[:0]
        rows[role] = np.union1d(best, own)
    return restricted(instance, rows), {role: kept[role][mine] for role, mine in rows.items()}


def _within_prices(instance: Instance, kept: dict[str, Ints], limit: int) -> tuple[Instance, dict[str, Ints]]:
    """A pruned instance without what is above the limit once memory and GPUs have their price."""
    left, again, _ = prune_by_prices(instance, limit)
    return left, {role: rows[again[role]] for role, rows in kept.items()}


def _in_whole(choice: Choice, kept: dict[str, Ints]) -> Choice:
    """A choice of pruned tables with the row numbers of the whole ones."""
    return Choice(choice.pools, {role: int(kept[role][row]) for role, row in choice.rows.items()})


def _closer(instance: Instance, start: Choice, limit: int) -> tuple[Choice, int]:
    """The quick choice looked for again among what the first one leaves, where that saw a part of the pool sizes."""
    few, _ = thinned(instance)
    if few is instance:
        return start, limit
    pruned, kept = prune_beyond(instance, limit)
    found, ticks = greedy(pruned)
    return (start, limit) if found is None or ticks >= limit else (_in_whole(found, kept), ticks)


def _start(instance: Instance, known: Choice | None) -> tuple[Choice | None, int]:
    """The better of the quick choice and the known one, if that fits, and its ticks."""
    start, limit = quick_choice(instance)
    if known is None or not fits(instance, known):
        return start, limit
    ticks = ticks_of(instance, known)
    return (known, ticks) if start is None or ticks < limit else (start, limit)


def _within(
    instance: Instance, seed: int, time_limit_s: float, cutoff: int, workers: int
) -> tuple[Choice | None, Solution]:
    """The best choice of at most ``cutoff`` ticks, with no known one to start from."""
    pruned, kept = prune_beyond(instance, cutoff)
    pruned, kept = _within_prices(pruned, kept, cutoff)
    solution = solve(pruned, seed=seed, time_limit_s=time_limit_s, most_ticks=cutoff, workers=workers)
    if solution.choice is None:
        return None, replace(solution, bound_ticks=cutoff + 1)
    return _in_whole(solution.choice, kept), replace(solution, bound_ticks=min(solution.bound_ticks, cutoff + 1))
