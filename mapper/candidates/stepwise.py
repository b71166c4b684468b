"""Pricing in steps, most promising first, with a look at the clock between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from mapper.progress import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapper.deadline import Deadline
    from profiles.records import Ints

STEP_ENTRIES = 256
"""Entries of a listing in one step, more only where a single number of GPUs has more: below a second of pricing."""


class Steps(Protocol):
    """Something that is priced step by step."""

    @property
    def num_early(self) -> int:
        """How many of the first steps are early ones."""

    @property
    def num_left(self) -> int:
        """Steps that were not taken yet."""

    def price_next(self, deadline: Deadline) -> None:
        """Take the next step, or the most promising part of it when ``deadline`` is over."""


ALWAYS = 2
"""Steps that are taken whatever the time: with all GPUs, and with half of them there is one pool beside another."""

EARLY_S = 3.0
"""Seconds after the deadline in which other early steps still begin."""


def steps_of(num_gpus: Ints) -> tuple[list[Ints], int]:
    """Positions in a listing by step, and how many of the steps are early ones; at least one.

    ``num_gpus`` of each entry: those of one number are in one step, and each step is ascending. Early are the most GPUs
    and the powers of two, from half of those down: a plan of these can be had of nearly every job.
    """
    numbers, of_entry, count = np.unique(num_gpus, return_inverse=True, return_counts=True)
    if not len(numbers):
        return [np.zeros(0, dtype=np.int64)], 1
    most = int(numbers[-1])
    plain = np.flatnonzero((numbers & (numbers - 1) == 0) & (numbers < most))[::-1].tolist()
    plain = [len(numbers) - 1, *sorted(plain, key=lambda i: 2 * numbers[i] > most)]
    others = [i for i in range(len(numbers) - 1, -1, -1) if i not in set(plain)]
    batches: list[list[int]] = []
    num_early = 0
    for some in (plain, others):
        entries = STEP_ENTRIES
        for i in some:
            if entries + count[i] > STEP_ENTRIES:
                batches.append([])
                entries = 0
            batches[-1].append(i)
            entries += count[i]
        num_early = num_early or len(batches)
    order = np.argsort(of_entry, kind="stable")
    begin = np.concatenate([[0], np.cumsum(count)])
    steps = [np.sort(np.concatenate([order[begin[i] : begin[i + 1]] for i in batch])) for batch in batches]
    return steps, num_early


def price_in_turn(rows: Sequence[Steps], deadline: Deadline) -> None:
    """Take the first steps of each whatever the time, then one of each in turn until all are taken or time is up.

    Early steps come before all others, and may begin up to ``EARLY_S`` after the deadline.
    """
    price_early(rows, deadline)
    price_others(rows, deadline)


def price_early(rows: Sequence[Steps], deadline: Deadline) -> None:
    """The early steps alone."""
    late = deadline.later(EARLY_S)
    total = sum(one.num_left for one in rows)
    for turn in range(ALWAYS):
        for one in rows:
            if turn < one.num_early:
                _next(one, rows, total, late)
    _take(rows, [one.num_early - ALWAYS for one in rows], total, late)


def price_others(rows: Sequence[Steps], deadline: Deadline) -> None:
    """All steps that are left."""
    total = sum(one.num_left for one in rows)
    _take(rows, [one.num_left for one in rows], total, deadline)


def _next(one: Steps, rows: Sequence[Steps], total: int, deadline: Deadline) -> None:
    tell("pricing layouts", total - sum(other.num_left for other in rows), total)
    one.price_next(deadline)


def _take(rows: Sequence[Steps], counts: list[int], total: int, deadline: Deadline) -> None:
    """So many steps of each, in turn, until time is up."""
    for turn in range(max(counts, default=0)):
        for one, count in zip(rows, counts, strict=True):
            if turn < count:
                if deadline.is_over():
                    return
                _next(one, rows, total, deadline)
