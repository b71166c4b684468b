"""Safe pruning: drop a candidate only if another is at least as good in everything the answer depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats, Ints


def non_dominated(values: Floats) -> Ints:
    """Indices of the rows of ``values`` ``[C, D]`` (all to be small) that no other row dominates, ascending.

    Of equal rows the first one stays. Safe because the iteration time never falls when a duration grows, and a
    memory constraint that holds keeps holding when a need shrinks.
    """
    # A dominating row comes first: its sum is no larger (large and small columns may round to equal sums, so the
    # columns themselves decide then), and of equal rows the earlier one.
    order = np.lexsort((np.arange(len(values)), *values.T[::-1], values.sum(axis=1)))
    left = values[order]
    kept: list[int] = []
    index = np.arange(len(order))
    while len(left):
        kept.append(int(order[index[0]]))
        alive = ~np.all(left >= left[0], axis=1)
        left, index = left[alive], index[alive]
    return np.sort(np.asarray(kept, dtype=np.int64))
