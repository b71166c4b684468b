"""Safe pruning: drop a candidate only if another is at least as good in everything the answer depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats, Ints


BLOCK = 64
"""Rows that are compared with all later ones at once: enough to spare most of the calls, few enough for the cache."""

MANY = 2_000
"""Rows from which on it is quicker to compare ranks, small integers, than the numbers themselves."""

SMALL_GROUP = 128
"""Rows of a group up to which it is compared together with all others of the kind: a call for each takes longer."""


def non_dominated(values: Floats) -> Ints:
    """Indices of the rows of ``values`` ``[C, D]`` (all to be small) that no other row dominates, ascending.

    Of equal rows the first one stays. Safe because the iteration time never falls when a duration grows, and a
    memory constraint that holds keeps holding when a need shrinks.
    """
    # A dominating row comes first: its sum is no larger (large and small columns may round to equal sums, so the
    # columns themselves decide then), and of equal rows the earlier one. Each column counts by what it is of its least:
    # so those come first that are good in all, and beat most.
    if len(values) < 2:
        return np.arange(len(values))
    values = values[:, [i for i in range(values.shape[1]) if not _repeats(values, i)]]
    lowest = values.min(axis=0)
    total = (values / np.where((lowest > 0) & np.isfinite(lowest), lowest, 1.0)).sum(axis=1)
    first = _not_clearly_beaten(values, total)
    values = values[first]
    index = np.lexsort((np.arange(len(values)), *values.T[::-1], total[first]))
    left = np.take(_columns(values), index, axis=1)
    kept: list[Ints] = []
    while len(index):
        head, rest = left[:, :BLOCK], left[:, BLOCK:]
        best = ~np.any(np.triu(_no_worse(head, head), 1), axis=0)
        kept.append(index[:BLOCK][best])
        alive = ~np.any(_no_worse(np.compress(best, head, axis=1), rest), axis=0)
        left, index = np.compress(alive, rest, axis=1), index[BLOCK:][alive]
    return first[np.sort(np.concatenate(kept))]


def _columns(values: Floats) -> np.ndarray:
    """The columns ``[D, C]``, or the ranks in each where there are many rows: what compares alike."""
    if len(values) < MANY:
        return np.ascontiguousarray(values.T)
    ranks = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in values.T]
    small = len(values) <= np.iinfo(np.uint16).max
    return np.stack(ranks).astype(np.uint16 if small else np.uint32)


def _not_clearly_beaten(values: Floats, total: Floats) -> Ints:
    """Rows that none of the ``BLOCK`` rows of least ``total`` beats, ascending: to sort what these leave is cheap."""
    if len(values) <= 2 * BLOCK:
        return np.arange(len(values))
    head = np.argpartition(total, BLOCK)[:BLOCK]
    no_worse = _no_worse(np.ascontiguousarray(values[head].T), np.ascontiguousarray(values.T))
    return np.flatnonzero(~np.any(no_worse & (total[head, None] < total), axis=0))


def _repeats(values: Floats, column: int) -> bool:
    """Whether an earlier column holds the same."""
    return any(np.array_equal(values[:, i], values[:, column]) for i in range(column))


def _no_worse(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether each row of ``first`` ``[D, F]`` is no worse than each of ``second`` in every column, ``[F, S]``."""
    out = first[0][:, None] <= second[0]
    for one, other in zip(first[1:], second[1:], strict=True):
        out &= one[:, None] <= other
    return np.asarray(out)


def non_dominated_by_group(key: Ints, values: Floats) -> Ints:
    """Rows that no other row of equal key dominates, ascending; of equal rows the first stays."""
    if values.shape[1] == 2:
        return _two_by_group(key, values)
    small, large = _by_size(key)
    kept = [small[_small_by_group(key[small], values[small])]]
    kept += [rows[non_dominated(values[rows])] for rows in _by_group(key[large], large)]
    return np.sort(np.concatenate(kept))


def _by_size(key: Ints) -> tuple[Ints, Ints]:
    """Rows of keys with up to ``SMALL_GROUP`` rows, and the others, each ascending."""
    _, of, count = np.unique(key, return_inverse=True, return_counts=True)
    small = count[of.reshape(-1)] <= SMALL_GROUP
    return np.flatnonzero(small), np.flatnonzero(~small)


def _small_by_group(key: Ints, values: Floats) -> Ints:
    """The same for many small groups at once, in no order.

    Sorted as in ``non_dominated``, each row is compared with the one before it in its group, then with the one before
    that, and so on; a row leaves when it is beaten.
    """
    order = np.lexsort((np.arange(len(key)), *values.T[::-1], values.sum(axis=1), key))
    begins = np.concatenate([[True], np.diff(key[order]) != 0])[: len(key)]
    nth = np.arange(len(key)) - np.maximum.accumulate(np.where(begins, np.arange(len(key)), 0))
    columns = np.ascontiguousarray(values[order].T)
    left, alive = np.flatnonzero(nth >= 1), np.ones(len(key), dtype=np.bool_)
    before = 1
    while len(left):
        beaten = np.all(columns[:, left - before] <= columns[:, left], axis=0)
        alive[left[beaten]] = False
        before += 1
        left = left[~beaten & (nth[left] >= before)]
    return np.asarray(order[alive], dtype=np.int64)


def _two_by_group(key: Ints, values: Floats) -> Ints:
    """The same for two columns, all groups at once.

    Sorted by group and first column, a row stays if its second is less than all before it in its group. Ranks stand
    for the second column, lowered by more than there are ranks from group to group, so that one running minimum
    starts anew in each.
    """
    if not len(key):
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((values[:, 1], values[:, 0], key))
    _, rank = np.unique(values[:, 1], return_inverse=True)
    _, group = np.unique(key, return_inverse=True)
    lowered = rank.reshape(-1)[order] - group.reshape(-1)[order] * (len(key) + 1)
    before = np.concatenate([[np.iinfo(np.int64).max], np.minimum.accumulate(lowered)[:-1]])
    return np.sort(order[lowered < before])


def _by_group(key: Ints, rows: Ints) -> list[Ints]:
    """``rows`` by equal ``key`` of each."""
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return [rows[part] for part in np.split(order, cuts) if len(part)]
