"""The best choice where the transfer of weights depends on two roles' configurations: ranges, best first.

A range holds the plans whose trainer has one kind of GPU and a number of sending GPUs between two ends. In a range the
transfer has the least price that any of its plans pays, so the solver's answer bounds them all. The range with the
lowest bound is looked into first; its answer is priced as it is, and unless that already equals the bound the range is
split around the answer's number of senders. What is left when no range can beat the best choice is the optimum.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.deadline import TimeUpError
from mapper.execution_mode import GENERATOR
from mapper.model.choices import fits, senders, ticks_of
from mapper.model.solver import Solution
from mapper.model.variables import Choice
from mapper.search.proof import best_as_priced
from mapper.search.prune import restricted

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from profiles.records import Ints


@dataclass(frozen=True, eq=False)
class _Range:
    """Rows of the actor, all of one kind of GPU, whose numbers of senders are neighbours."""

    device_type: str
    rows: Ints


# Long as one loop of a branch and bound: each way out of a range changes its bounds, so it is read at once.
def best_with_transfers(
    instance: Instance, seed: int, time_limit_s: float, known: Choice | None, cutoff: int | None, workers: int
) -> tuple[Choice | None, Solution]:
    """As ``best_choice``, for an instance whose actor generates on a dedicated pool."""
    began = time.perf_counter()
    best = _known(instance, known)
    order = itertools.count()
    open_ranges: list[tuple[int, int, _Range]] = []
    for device_type in instance.device_types:
        if len(rows := instance.rows_on("actor", device_type)):
            heapq.heappush(open_ranges, (0, next(order), _Range(device_type, rows)))
    proven = True
    while open_ranges:
        limit = _limit(best, cutoff)
        bound, _, one = heapq.heappop(open_ranges)
        if limit is not None and bound > limit:
            break
        left_s = time_limit_s - (time.perf_counter() - began)
        try:
            choice, solution = _solved(instance, one, seed, left_s, limit, workers)
        except TimeUpError:
            heapq.heappush(open_ranges, (bound, next(order), one))
            proven = False
            break
        least = max(bound, solution.bound_ticks)
        if choice is None or (limit is not None and least > limit):
            continue
        ticks = ticks_of(instance, choice)
        if (best is None or ticks < best[1]) and (cutoff is None or ticks <= cutoff):
            best = (choice, ticks)
        if ticks > least:
            if time.perf_counter() - began > time_limit_s:
                heapq.heappush(open_ranges, (least, next(order), one))
                proven = False
                break
            for part in _split(
                instance, one, int(senders(instance)[choice.rows["actor"]]), solution.status == "optimal"
            ):
                heapq.heappush(open_ranges, (least, next(order), part))
    return _answer(instance, best, open_ranges, cutoff, proven, time.perf_counter() - began)


def _answer(
    instance: Instance,
    best: tuple[Choice, int] | None,
    left: list[tuple[int, int, _Range]],
    cutoff: int | None,
    proven: bool,
    seconds: float,
) -> tuple[Choice | None, Solution]:
    least = min((bound for bound, _, _ in left), default=None)
    if best is None:
        if not proven and cutoff is None:
            raise TimeUpError
        bound = cutoff + 1 if cutoff is not None and proven else least or 0
        return None, Solution("infeasible", None, 0, bound, seconds)
    choice, ticks = best
    bounds = (ticks, least, None if cutoff is None else cutoff + 1)  # of a choice above the cutoff nothing is proven
    bound = min(bound for bound in bounds if bound is not None)
    return choice, Solution("optimal" if bound >= ticks else "feasible", choice, ticks, bound, seconds)


def _known(instance: Instance, known: Choice | None) -> tuple[Choice, int] | None:
    return (known, ticks_of(instance, known)) if known is not None and fits(instance, known) else None


def _limit(best: tuple[Choice, int] | None, cutoff: int | None) -> int | None:
    """Most ticks that are of interest: fewer than the best has, and no more than asked."""
    of_best = None if best is None else best[1] - 1
    return min((n for n in (of_best, cutoff) if n is not None), default=None)


def _solved(
    instance: Instance, one: _Range, seed: int, time_limit_s: float, limit: int | None, workers: int
) -> tuple[Choice | None, Solution]:
    """The best choice of a range at the least price of its transfers; row numbers are those of ``instance``."""
    assert instance.sync is not None, "the actor generates on a dedicated pool"
    least = instance.sync.least(instance.tables[GENERATOR], one.device_type, senders(instance)[one.rows])
    partitions = tuple(
        p for p in instance.partitions if any("actor" in g.roles and g.device_type == one.device_type for g in p)
    )
    sizes = {group: instance.sizes[group] for p in partitions for group in p}
    ticks = instance.ticks | {GENERATOR: instance.ticks[GENERATOR] | {"transition": least}}
    inside = restricted(
        replace(instance, ticks=ticks, partitions=partitions, sizes=sizes, sync=None), {"actor": one.rows}
    )
    choice, solution = best_as_priced(inside, seed, time_limit_s, cutoff=limit, workers=workers)
    if choice is None:
        return None, solution
    return Choice(choice.pools, choice.rows | {"actor": int(one.rows[choice.rows["actor"]])}), solution


def _split(instance: Instance, one: _Range, at: int, keep_apart: bool) -> list[_Range]:
    """The range below, at and above a number of senders; at a single number the price is exact, and nothing is left."""
    number = senders(instance)[one.rows]
    parts = [
        _Range(one.device_type, one.rows[mask]) for mask in (number < at, number == at, number > at) if np.any(mask)
    ]
    if len(parts) == 1 and keep_apart:
        return []
    return parts
