"""Objectives that weigh time against GPUs: the best choice over all numbers of GPUs, from one priced instance.

An iteration never gets longer with more GPUs allowed, so what is proven for a budget bounds every smaller one. That
is what leaves most budgets unsolved.
"""

from __future__ import annotations

import bisect
import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mapper.deadline import TimeUpError
from mapper.model.choices import ticks_of, with_budget
from mapper.search.best import best_choice

if TYPE_CHECKING:
    from mapper.deadline import Deadline
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice


@dataclass(frozen=True)
class Found:
    """The best choice under an objective.

    Parameters
    ----------
    choice, ticks
        The choice, and ticks of its iteration.
    bound_ticks
        No choice on at most as many GPUs takes fewer ticks.
    least
        No choice is worth less: ticks x what its GPUs count for GPU time, GPUs for the fewest GPUs.
    floor_ticks
        No choice at all takes fewer ticks.
    """

    choice: Choice
    ticks: int
    bound_ticks: int
    least: int
    floor_ticks: int


@dataclass(frozen=True)
class Search:
    """How to solve one budget: the instance, the seed, until when, solver threads."""

    x: Instance
    seed: int
    deadline: Deadline
    workers: int = 1

    def at(self, budget: int, known: Choice | None, cutoff: int | None = None) -> tuple[Choice | None, int]:
        """The best choice found whose GPUs count at most ``budget``, and a lower bound in ticks (0: nothing known)."""
        left_s = self.deadline.left_s
        try:
            choice, solution = best_choice(with_budget(self.x, budget), self.seed, left_s, known, cutoff, self.workers)
        except TimeUpError:  # time is up
            return None, 0
        bound = solution.bound_ticks
        return choice, bound if choice is not None or cutoff is not None else _NEVER

    def with_share(self, share: float) -> Search:
        """The same search with this share of the time that is left."""
        return replace(self, deadline=self.deadline.share(share))

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.deadline.is_over()


_NEVER = 2**62
"""Ticks of an iteration on a budget that holds no choice."""


def is_never(ticks: int) -> bool:
    """Whether a bound says that nothing fits."""
    return ticks >= _NEVER


def budgets_of(instance: Instance) -> list[int]:
    """Everything that the GPUs of a choice may count together, ascending."""
    reachable = 0
    for partition in instance.partitions:
        sums = {
            device_type: 1 for device_type in instance.device_types
        }  # bit n is set if the pools of the kind so far may have n GPUs together
        for group in partition:
            mask, grown = (1 << (instance.gpus[group.device_type] + 1)) - 1, 0
            for n in instance.sizes[group]:
                grown |= sums[group.device_type] << n
            sums[group.device_type] = grown & mask
        whole = 1
        for device_type, of_kind in sums.items():
            whole = _shifted(whole, [n * instance.weight[device_type] for n in _bits(of_kind)])
        reachable |= whole
    return [n for n in _bits(reachable) if 1 <= n <= instance.budget]


def _bits(number: int) -> list[int]:
    """Positions of the bits that are set, ascending."""
    return [i for i, bit in enumerate(reversed(bin(number)[2:])) if bit == "1"]


def _shifted(number: int, by: list[int]) -> int:
    out = 0
    for n in by:
        out |= number << n
    return out


def least_gpu_time(search: Search, known: Choice | None) -> Found | None:
    """The choice with the least ticks x what its GPUs count; ``None`` if nothing fits.

    Raises ``TimeUpError`` if nothing is found in time. Branch and bound over ranges of budgets: a range is worth at
    least its smallest budget times the bound of its largest. Only ranges that may beat the best choice are looked into,
    and there only choices that would.
    """
    budgets = budgets_of(search.x)
    choice, floor = search.at(search.x.budget, known)
    if choice is None:
        _check_proven(floor)
        return None
    best, worth = choice, ticks_of(search.x, choice) * search.x.spent(choice.pools)
    if known is not None and (value := ticks_of(search.x, known) * search.x.spent(known.pools)) < worth:
        best, worth = known, value
    least = search.x.spent(choice.pools) * floor  # of the budgets that this choice settles
    ranges: list[tuple[int, int, int, int]] = []
    _push(ranges, budgets, 0, bisect.bisect_left(budgets, search.x.spent(choice.pools)) - 1, floor)
    while ranges and ranges[0][0] < worth and not search.over:
        _, low, high, bound = heapq.heappop(ranges)
        middle = (low + high) // 2
        _push(ranges, budgets, middle + 1, high, bound)
        cutoff = (worth - 1) // budgets[low]
        choice, proven = search.at(budgets[middle], None, cutoff)
        proven = max(proven, bound)
        if choice is None:  # nothing there can beat the best, or time is up
            least = min(least, budgets[low] * proven)
            continue
        used = max(search.x.spent(choice.pools), budgets[low])
        least = min(least, used * proven)
        _push(ranges, budgets, low, bisect.bisect_left(budgets, used) - 1, proven)
        if (value := ticks_of(search.x, choice) * search.x.spent(choice.pools)) < worth:
            best, worth = choice, value
    least = min([least, worth, *(item[0] for item in ranges)])
    return _found(search, best, least, floor)


def fewest_gpus_within(search: Search, most_ticks: int, known: Choice | None) -> Found | None:
    """The choice on the fewest GPUs that takes at most ``most_ticks``, the fastest there; ``None`` if none does.

    Raises ``TimeUpError`` if nothing is found in time.
    """
    budgets = budgets_of(search.x)
    choice, bound = search.at(search.x.budget, known, most_ticks)
    if choice is None or ticks_of(search.x, choice) > most_ticks:
        _check_proven(bound if bound <= most_ticks else _NEVER)
        return None
    best, low, high = choice, 0, bisect.bisect_left(budgets, search.x.spent(choice.pools))
    while low < high and not search.over:
        middle = (low + high) // 2
        choice, bound = search.at(budgets[middle], None, most_ticks)
        if choice is not None and ticks_of(search.x, choice) <= most_ticks:
            best, high = choice, bisect.bisect_left(budgets, search.x.spent(choice.pools))
        elif bound > most_ticks:
            low = middle + 1
        else:  # time is up
            break
    return _found(search, best, budgets[min(low, high)], 0)


def _found(search: Search, choice: Choice, least: int, floor: int) -> Found:
    """The fastest choice on as many GPUs as ``choice`` has, with its proof."""
    fastest, bound = search.at(search.x.spent(choice.pools), choice)
    if fastest is None:
        fastest, bound = choice, floor
    return Found(fastest, ticks_of(search.x, fastest), max(bound, floor), least, floor)


def _check_proven(bound: int) -> None:
    """Raise ``TimeUpError`` unless ``bound`` says that nothing fits: then time was up."""
    if not is_never(bound):
        raise TimeUpError


def _push(ranges: list[tuple[int, int, int, int]], budgets: list[int], low: int, high: int, bound: int) -> None:
    """Add the budgets at ``low`` to ``high``, where no choice takes fewer ticks than ``bound``, if there are any."""
    if low <= high:
        heapq.heappush(ranges, (budgets[low] * bound, low, high, bound))
