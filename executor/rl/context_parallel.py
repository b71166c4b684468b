"""A packed micro-batch cut among context-parallel ranks, each sequence into ``2 c`` chunks.

Rank ``r`` has chunks ``r`` and ``2 c - 1 - r``: one whose tokens see few others and one whose tokens see many, so that
attention is as much work everywhere (as Megatron-Core and Transformer Engine cut). Targets stay with the token before
them, wherever the target itself lies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.rl.packing import Packed


def chunks_of_sequence(num_ranks: int) -> int:
    """Into how many chunks a sequence is cut: its length is a multiple of that."""
    return 1 if num_ranks == 1 else 2 * num_ranks


def places_of(lengths: Sequence[int], index: int, num_ranks: int) -> torch.Tensor:
    """Where the tokens of rank ``index`` stand in whole sequences of these ``lengths``: ``[N / c]``."""
    found, start = [], 0
    for length in lengths:
        chunk = length // (2 * num_ranks)
        for k in (index, 2 * num_ranks - 1 - index):
            found.append(torch.arange(start + k * chunk, start + (k + 1) * chunk))
        start += length
    return torch.cat(found)


def part_of(micro: Packed, index: int, num_ranks: int) -> Packed:
    """What rank ``index`` runs of ``micro``: its tokens, and the targets that these predict.

    ``before`` and ``last`` are places among its own tokens, ``last`` -1 for rows that end elsewhere; ``lengths`` and
    ``rows`` stay those of whole sequences.
    """
    if num_ranks == 1:
        return micro
    held = places_of(micro.lengths, index, num_ranks)
    own = torch.full((sum(micro.lengths),), -1).index_copy(0, held, torch.arange(len(held)))
    mine = (own[micro.before] >= 0).nonzero()[:, 0]
    has_targets = len(mine) > 0
    # without a target of its own a rank predicts one that does not count: the others wait for it in collectives
    chosen = mine if has_targets else torch.zeros(1, dtype=torch.int64)
    return replace(
        micro,
        tokens=micro.tokens[:, held],
        positions=micro.positions[:, held],
        before=own[micro.before[chosen]].clamp(min=0),
        targets=micro.targets[chosen],
        at=micro.at[chosen],
        last=own[micro.last],
        has_targets=has_targets,
    )
