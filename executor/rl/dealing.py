"""Rows dealt to data-parallel ranks so that all of them have about equally many tokens in every optimizer step.

What the simulator prices (``micro_batches.num_micro_batches``): ranks have equally many rows and tokens. The rule is
verl's (``trainer.balance_batch``), which deals the whole batch, so that its steps have other rows than without. Here
row ``i`` stays in step ``i mod m``, and losses are those of rows in their order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Hand:
    """Rows of one rank.

    Parameters
    ----------
    rows
        Its own rows in their order in the batch.
    fillers
        Rows that it copies so that all ranks have equally many in every step; they do not count.
    """

    rows: tuple[int, ...]
    fillers: tuple[int, ...]


@lru_cache(maxsize=4)
def deal(lengths: tuple[int, ...], num_ranks: int, num_steps: int) -> tuple[Hand, ...]:
    """The rows of each rank: those of each step by the differencing of Karmarkar and Karp, equally many for each.

    Parameters
    ----------
    lengths
        Tokens of each row.
    num_ranks
        Data-parallel ranks.
    num_steps
        Optimizer steps ``m`` that the batch is cut into.

    Returns
    -------
    tuple[Hand, ...]
        One of each rank, equally long with its fillers.
    """
    rows: list[list[int]] = [[] for _ in range(num_ranks)]
    fillers: list[list[int]] = [[] for _ in range(num_ranks)]
    for step in range(num_steps):
        longest_first = sorted(range(step, len(lengths), num_steps), key=lambda i: (-lengths[i], i))
        parts = _evenly(longest_first, lengths, num_ranks)
        most = max(len(part) for part in parts)
        # the rank with the most tokens so far gets the least of this step
        by_tokens = sorted(range(num_ranks), key=lambda rank: (-sum(lengths[i] for i in rows[rank]), rank))
        for rank, part in zip(by_tokens, parts, strict=True):
            rows[rank] += part
            fillers[rank] += longest_first[-1:] * (most - len(part))  # the shortest: it costs least
    return tuple(Hand(tuple(sorted(mine)), tuple(extra)) for mine, extra in zip(rows, fillers, strict=True))


def _evenly(longest_first: list[int], lengths: tuple[int, ...], num: int) -> list[list[int]]:
    """``num`` parts of equally many rows, one less where they do not divide, the one with the fewest tokens first.

    Each round of ``num`` rows is a dealing of its own; the two most uneven ones are joined, the largest parts of one
    with the smallest of the other, until one is left: as uneven as the most uneven round at most.

    Source: Karmarkar and Karp 1982; Michiels et al. 2003 for parts of equally many.
    """
    rounds = [longest_first[i : i + num] for i in range(0, len(longest_first), num)] or [[]]
    dealings = []
    for number, one in enumerate(rounds):
        parts = [(0, list[int]())] * (num - len(one)) + [(lengths[row], [row]) for row in reversed(one)]
        dealings.append((parts[0][0] - parts[-1][0], number, parts))
    heapq.heapify(dealings)
    for number in range(len(rounds), 2 * len(rounds) - 1):
        (_, _, first), (_, _, other) = heapq.heappop(dealings), heapq.heappop(dealings)
        joined = [(a + b, [*mine, *theirs]) for (a, mine), (b, theirs) in zip(first, reversed(other), strict=True)]
        joined.sort(key=lambda part: part[0])
        heapq.heappush(dealings, (joined[0][0] - joined[-1][0], number, joined))
    return [part for _, part in dealings[0][2]]
