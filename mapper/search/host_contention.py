"""The search where ranks share one host's cores: what a call takes depends on what runs beside it.

``simulate`` knows that only of a whole plan, so no table holds it. What tables hold, calls alone, bounds it: no call
gets faster in company. So ranges of plans are searched by calls alone, the lowest bound first; the answer of each is
priced as ``simulate`` prices it, and a range whose answer loses to its neighbours is split around it: by how many ranks
there are (each costs a little between calls), by who shares, by pool sizes. What a range of one placement and one
set of pool sizes still loses stays open: the reported gap has it.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mapper.deadline import TimeUpError
from mapper.model.choices import fits, gpus_of, with_budget
from mapper.model.solver import Solution
from mapper.search.tie_breaking import tidy

if TYPE_CHECKING:
    from typing import Protocol

    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import ColocationGroup, Placement

    class Best(Protocol):
        """The best choice of an instance of calls alone."""

        def __call__(
            self,
            instance: Instance,
            seed: int,
            time_limit_s: float,
            known: Choice | None,
            cutoff: int | None,
            workers: int,
        ) -> tuple[Choice | None, Solution]: ...


MOST_RANGES = 64
"""Ranges that are searched at most; what they leave open is in the gap."""

LEAST_S = 0.05
"""Seconds that a range gets at least when time is nearly up."""


@dataclass(frozen=True, eq=False)
class _Range:
    """Choices of some placements and pool sizes that have ``fewest`` to ``most`` ranks."""

    fewest: int
    most: int
    partitions: tuple[Placement, ...]
    sizes: dict[ColocationGroup, tuple[int, ...]]


# Long as one loop of a branch and bound: each way out of a range changes its bounds, so it is read at once.
def best_beside_neighbours(
    instance: Instance,
    seed: int,
    time_limit_s: float,
    known: Choice | None,
    cutoff: int | None,
    workers: int,
    best_alone: Best,
) -> tuple[Choice | None, Solution]:
    """As ``best.best_choice``; ``best_alone`` searches by calls alone. The bound is one of calls alone."""
    began, host = time.perf_counter(), instance.neighbours
    assert host is not None, "ranks share a host"
    best = (known, host.ticks(instance, known)) if known is not None and fits(instance, known) else None
    order = itertools.count()
    ranges = [(0, next(order), _Range(1, instance.budget, instance.partitions, instance.sizes))]
    lost: list[int] = []  # bounds of ranges that cannot be split further
    searched, refusal = 0, None
    while ranges and (limit := _limit(best, cutoff)) >= ranges[0][0] and searched < MOST_RANGES:
        left_s = time_limit_s - (time.perf_counter() - began)
        if left_s <= 0 and best is not None:
            break
        bound, _, one = heapq.heappop(ranges)
        try:
            within = None if limit == _NO_LIMIT else limit
            alone = _alone(instance, one)
            choice, solution = best_alone(alone, seed, max(left_s, LEAST_S), None, within, workers)
        except TimeUpError as error:
            heapq.heappush(ranges, (bound, next(order), one))
            refusal = error
            break
        searched, least = searched + 1, max(bound, solution.bound_ticks)
        if choice is None or least > limit:
            if choice is None and within is not None and least <= limit:  # time was up
                lost.append(least)
            continue
        tidied = tidy(alone, choice, solution.objective_ticks, max(left_s, LEAST_S), workers)
        ticks, choice = min((host.ticks(instance, c), i, c) for i, c in enumerate((tidied, choice)))[::2]
        if ticks <= limit:
            best = (choice, ticks)
        parts = _split(instance, one, choice) if ticks > least + len(instance.flow.calls) else []
        for part in parts:
            heapq.heappush(ranges, (least, next(order), part))
        if not parts:
            lost.append(least)
    if best is None and refusal is not None and cutoff is None:
        raise refusal
    return _answer(best, [*lost, *(bound for bound, _, _ in ranges)], cutoff, time.perf_counter() - began)


_NO_LIMIT = 2**62


def _limit(best: tuple[Choice, int] | None, cutoff: int | None) -> int:
    """Most ticks that are of interest: fewer than the best has, and no more than asked."""
    return min(_NO_LIMIT if best is None else best[1] - 1, _NO_LIMIT if cutoff is None else cutoff)


def _answer(
    best: tuple[Choice, int] | None, left: list[int], cutoff: int | None, seconds: float
) -> tuple[Choice | None, Solution]:
    least = min(left, default=_NO_LIMIT)
    if best is None:
        bound = 0 if cutoff is None else min(cutoff + 1, least)
        return None, Solution("infeasible", None, 0, bound, seconds)
    choice, ticks = best
    bound = min(ticks, least, _NO_LIMIT if cutoff is None else cutoff + 1)  # above the cutoff nothing is proven
    return choice, Solution("optimal" if bound == ticks else "feasible", choice, ticks, bound, seconds)


def _alone(instance: Instance, one: _Range) -> Instance:
    """The range with calls alone, those that follow others behind what the fewest ranks of the range cost."""
    assert instance.neighbours is not None, "ranks share a host"
    before = instance.neighbours.further_rank_ticks * (one.fewest - 1)
    follow = {call.key for call in instance.flow.calls if call.inputs}
    ticks = {
        role: {key: t + before if key in follow else t for key, t in calls.items()}
        for role, calls in instance.ticks.items()
    }
    inside = replace(instance, neighbours=None, ticks=ticks, partitions=one.partitions, sizes=one.sizes)
    return with_budget(inside, one.most)


def _split(instance: Instance, one: _Range, choice: Choice) -> list[_Range]:
    """The range around ``choice``: by ranks where they cost something, by placement, by pool sizes; else nothing."""
    assert instance.neighbours is not None, "ranks share a host"
    ranks, parts = gpus_of(choice), []
    mine = next(p for p in one.partitions if {group for group, _ in choice.pools} == set(p))
    several = next(((group, n) for group, n in choice.pools if len(one.sizes[group]) > 1), None)
    if instance.neighbours.further_rank_ticks and one.fewest < one.most and one.fewest <= ranks <= one.most:
        ends = ((one.fewest, ranks - 1), (ranks, ranks), (ranks + 1, one.most))
        parts = [replace(one, fewest=low, most=high) for low, high in ends if low <= high]
    elif len(one.partitions) > 1:
        parts = [_of(one, (mine,)), _of(one, tuple(p for p in one.partitions if p != mine))]
    elif several is not None:
        group, n = several
        others = tuple(size for size in one.sizes[group] if size != n)
        parts = [replace(one, sizes=one.sizes | {group: sizes}) for sizes in ((n,), others)]
    return [part for part in parts if _has_any(part)]


def _of(one: _Range, partitions: tuple[Placement, ...]) -> _Range:
    """The part of a range that has these placements."""
    return replace(one, partitions=partitions, sizes={group: one.sizes[group] for p in partitions for group in p})


def _has_any(one: _Range) -> bool:
    """Whether some placement's pools can have as many ranks as the range asks for."""
    there = (p for p in one.partitions if all(one.sizes[group] for group in p))
    return any(
        sum(min(one.sizes[g]) for g in p) <= one.most and one.fewest <= sum(max(one.sizes[g]) for g in p) for p in there
    )
