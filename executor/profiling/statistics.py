"""What a handful of timings says: the median, a confidence interval for it, and how many timings were outliers.

The interval comes from order statistics (any distribution): the median lies between two sorted timings with the
probability that a fair coin gives. Nothing is thrown away; outliers (beyond 5 median absolute deviations) are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONFIDENCE = 0.95
OUTLIER_DEVIATIONS = 5.0
TRIES = 3
"""Measurements of one thing on cores that others use, before the fastest of them has to do."""


@dataclass(frozen=True)
class Summary:
    """Median seconds, its confidence interval, and the timings it rests on.

    ``cpu_share``: of a core, what the process had while it computed without a pause; ``None`` where it did not.
    """

    median_s: float
    low_s: float
    high_s: float
    repeats: int
    outliers: int
    cpu_share: float | None = None

    @property
    def half_width(self) -> float:
        """Half the interval over the median."""
        return (self.high_s - self.low_s) / 2.0 / self.median_s if self.median_s > 0 else math.inf


def summarise(times_s: Sequence[float]) -> Summary:
    """Summary of at least one timing. With fewer than 6 the interval is all of them, and that is less than 95 %."""
    ordered = np.sort(np.asarray(times_s, dtype=np.float64))
    if ordered.size == 0:
        raise ValueError("no timings to summarise")
    median = float(np.median(ordered))
    deviation = float(np.median(np.abs(ordered - median)))
    far = np.abs(ordered - median) > OUTLIER_DEVIATIONS * deviation if deviation > 0 else np.zeros(ordered.size, bool)
    below = rank_below(ordered.size)
    return Summary(median, float(ordered[below]), float(ordered[-1 - below]), ordered.size, int(far.sum()))


def least_disturbed(rounds: Sequence[Summary]) -> Summary:
    """The fastest of summaries of one thing, taken at different times: what else a machine does only ever slows."""
    return min(rounds, key=lambda summary: summary.median_s)


def while_calm(measure: Callable[[], Summary], is_calm: Callable[[], bool]) -> Summary:
    """A measurement before and after which the machine was calm; the least disturbed of ``TRIES`` where none was."""
    made: list[Summary] = []
    before = is_calm()
    while len(made) < TRIES:
        made.append(measure())
        after = is_calm()
        if before and after:
            return made[-1]
        before = after
    return least_disturbed(made)


def rank_below(num: int) -> int:
    """How many of ``num`` sorted timings lie outside the 95 % interval of the median at each end; 0 for few timings."""
    tail, total, rank = 0.0, (1.0 - CONFIDENCE) / 2.0, 0
    for k in range(num // 2):
        tail += math.comb(num, k) * 0.5**num
        if tail > total:
            break
        rank = k + 1
    return max(rank - 1, 0)
