"""Rows as micro-batches without padding: their sequences one after another, and where in them the targets stand.

Everything that says how long something is stays on the host as numbers, so that no pass waits for a device.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict


@dataclass(frozen=True)
class Packed:
    """One micro-batch of ``b`` rows with ``N`` tokens and ``n`` targets in all.

    Parameters
    ----------
    tokens, positions
        ``[1, N]``; positions begin anew with every sequence.
    lengths
        Of the sequences in order, with what makes each a multiple; what fills ``N`` up is a sequence of its own, the
        last.
    before
        ``[n]``: place in ``tokens`` of the token before each target, whose output predicts it.
    targets
        ``[n]``: the tokens to predict.
    at
        ``[n]``: where each target's result goes among the ``b x R`` of the rows, row by row.
    last
        ``[b]``: place of each row's last token.
    rows
        The rows with every column that a loss reads.
    num_real
        How many of them count: 0 or ``b``.
    places
        Where the rows stand in the batch that they are of, ``b`` of them.
    has_targets
        Whether what ``spread`` is given counts: not on a rank whose part of the sequences has no target.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    lengths: tuple[int, ...]
    before: torch.Tensor
    targets: torch.Tensor
    at: torch.Tensor
    last: torch.Tensor
    rows: TensorDict
    num_real: int
    places: tuple[int, ...]
    has_targets: bool = True

    def to(self, device: torch.device) -> Packed:
        """The same on ``device``; the host does not wait for the copies."""
        names = ("tokens", "positions", "before", "targets", "at", "last")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return replace(self, rows=self.rows.to(device, non_blocking=True), **moved)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """``values [n]`` of the targets as ``[b, R]``, 0 where a row has none."""
        shape = self.rows["target_mask"].shape
        values = values if self.has_targets else values * 0.0
        return values.new_zeros(shape.numel()).index_copy(0, self.at, values).view(shape)


def lengths_of(rows: TensorDict) -> list[int]:
    """Tokens of each row that are no padding."""
    found: list[int] = rows["token_mask"].sum(1).tolist()
    return found


def padded_lengths(rows: TensorDict, each: int = 1) -> list[int]:
    """Tokens of each row with what makes them a multiple of ``each``."""
    return [-(-length // each) * each for length in lengths_of(rows)]


def spans(lengths: Sequence[int], micro_batch: int, token_budget: int, num: int = 0) -> list[Sequence[int]]:
    """Which rows run at once: ``micro_batch`` of them in their order, or as ``dealt`` to a budget of tokens.

    A budget makes as few micro-batches as hold all tokens, or ``num`` where other ranks need more.
    """
    if not token_budget:
        return [range(i, min(i + micro_batch, len(lengths))) for i in range(0, len(lengths), micro_batch)]
    fewest = -(-sum(lengths) // token_budget)
    return dealt(lengths, min(max(fewest, num, 1), len(lengths)))


def dealt(lengths: Sequence[int], num: int) -> list[Sequence[int]]:
    """Rows in ``num`` micro-batches with about equally many tokens, the longest ones in the middle.

    The longest row first, each to the micro-batch with the fewest tokens: what the planner prices, and verl nearly does
    (its ``seqlen_balancing`` is a little more even). As there, one may pass its budget by what stays uneven.
    """
    parts: list[list[int]] = [[] for _ in range(num)]
    held = [(0, 0, k) for k in range(num)]  # tokens, rows: of equally full ones the one with fewer rows
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, rows, k = heapq.heappop(held)
        parts[k].append(row)
        heapq.heappush(held, (tokens + lengths[row], rows + 1, k))
    longest_first = [sorted(parts[k]) for _, _, k in sorted(held, key=lambda one: (-one[0], one[2]))]
    return [longest_first[i] for i in (*reversed(range(0, num, 2)), *range(1, num, 2))]


def in_order(outputs: Sequence[torch.Tensor], micros: Sequence[Packed]) -> torch.Tensor:
    """What micro-batches gave for their rows, on the host, in the order of the batch; fillers are left out."""
    real = [(found, micro) for found, micro in zip(outputs, micros, strict=True) if micro.num_real]
    joined = torch.cat([found for found, _ in real]).float().cpu()  # the one wait; to order them there would be another
    return torch.empty_like(joined).index_copy_(0, torch.tensor([i for _, micro in real for i in micro.places]), joined)


def pack(
    rows: TensorDict,
    first: int,
    parts: Sequence[Sequence[int]],
    *,
    multiple: int = 1,
    size: int = 0,
    num: int = 0,
    each: int = 1,
) -> list[Packed]:
    """Micro-batches of ``rows`` (``tokens``, ``token_mask [B, T]``, ``target_mask [B, T - first]``), on the host.

    ``N`` is a ``multiple``, and not less than ``size``; the length of every sequence is a multiple of ``each``, which
    ``multiple`` is one of. Where there are less than ``num`` micro-batches, others follow in which nothing counts.
    """
    lengths = padded_lengths(rows, each)
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    fillers: list[Sequence[int]] = [[shortest]] * max(num - len(parts), 0)
    sizes = [-(-max(sum(lengths[i] for i in p), size) // multiple) * multiple for p in (*parts, *fillers)]
    return [
        _packed(_chosen(rows, part), first, tokens, tuple(part), each, i < len(parts))
        for i, (part, tokens) in enumerate(zip((*parts, *fillers), sizes, strict=True))
    ]


def _chosen(rows: TensorDict, part: Sequence[int]) -> TensorDict:
    chosen: TensorDict = rows[part.start : part.stop] if isinstance(part, range) else rows[torch.tensor(part)]
    return chosen


def _packed(rows: TensorDict, first: int, size: int, places: tuple[int, ...], each: int, counts: bool) -> Packed:
    """One micro-batch of ``size`` tokens."""
    mask, target_mask = rows["token_mask"], rows["target_mask"] & counts
    padded = padded_lengths(rows, each)
    starts = torch.tensor([0, *padded]).cumsum(0)[:-1]
    place = starts[:, None] + mask.long().cumsum(1) - 1
    tokens = torch.zeros(size, dtype=torch.int64)
    tokens[place[mask]] = rows["tokens"][mask]
    lengths = [length for length in (*padded, size - sum(padded)) if length]
    positions = torch.cat([torch.arange(length) for length in lengths])
    found = target_mask.flatten().nonzero()[:, 0]
    if not len(found):  # one place whose result no mask lets through: passes and collectives want some work
        found = torch.zeros(1, dtype=torch.int64)
    row = found // target_mask.shape[1]
    before = torch.maximum(place[:, first:].flatten()[found] - 1, starts[row])
    sent = rows.clone(recurse=False)
    sent["target_mask"] = target_mask
    last = (starts + mask.sum(1) - 1).clamp(min=0)
    targets = rows["tokens"][:, first:].flatten()[found]
    num_real = len(rows) * counts
    of_targets = (before, targets, found, last)
    return Packed(tokens[None], positions[None], tuple(lengths), *of_targets, sent, num_real, places)
