"""Rows as micro-batches without padding: their sequences one after another, and where in them the targets stand.

Everything that says how long something is stays on the host as numbers, so that no pass waits for a device.
"""

from __future__ import annotations

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
        Of the sequences in order; what fills ``N`` up is a sequence of its own, the last.
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

    def to(self, device: torch.device) -> Packed:
        """The same on ``device``; the host does not wait for the copies."""
        names = ("tokens", "positions", "before", "targets", "at", "last")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return replace(self, rows=self.rows.to(device), **moved)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """``values [n]`` of the targets as ``[b, R]``, 0 where a row has none."""
        shape = self.rows["target_mask"].shape
        return values.new_zeros(shape.numel()).index_copy(0, self.at, values).view(shape)


def lengths_of(rows: TensorDict) -> list[int]:
    """Tokens of each row that are no padding."""
    found: list[int] = rows["token_mask"].sum(1).tolist()
    return found


def spans(lengths: Sequence[int], micro_batch: int, token_budget: int) -> list[range]:
    """Which rows run at once, in their order: ``micro_batch`` of them, or as many as hold ``token_budget`` tokens.

    A row that is longer than the budget runs alone.
    """
    if not token_budget:
        return [range(i, min(i + micro_batch, len(lengths))) for i in range(0, len(lengths), micro_batch)]
    found, start, held = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and held + length > token_budget:
            found.append(range(start, i))
            start, held = i, 0
        held += length
    return [*found, range(start, len(lengths))]


def pack(
    rows: TensorDict,
    first: int,
    parts: Sequence[range],
    *,
    multiple: int = 1,
    size: int = 0,
    num: int = 0,
) -> list[Packed]:
    """Micro-batches of ``rows`` (``tokens``, ``token_mask [B, T]``, ``target_mask [B, T - first]``), on the host.

    ``N`` is a ``multiple``, and not less than ``size``. Where there are less than ``num`` micro-batches, others follow
    in which nothing counts.
    """
    lengths = lengths_of(rows)
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    fillers = [range(shortest, shortest + 1)] * max(num - len(parts), 0)
    sizes = [-(-max(sum(lengths[i] for i in p), size) // multiple) * multiple for p in (*parts, *fillers)]
    return [
        _packed(rows[part.start : part.stop], first, tokens, i < len(parts))
        for i, (part, tokens) in enumerate(zip((*parts, *fillers), sizes, strict=True))
    ]


def _packed(rows: TensorDict, first: int, size: int, counts: bool) -> Packed:
    """One micro-batch of ``size`` tokens."""
    mask, target_mask = rows["token_mask"], rows["target_mask"] & counts
    lengths = [length for length in lengths_of(rows) if length]
    ends = mask.sum(1).cumsum(0)
    starts = ends - mask.sum(1)
    place = starts[:, None] + mask.long().cumsum(1) - 1
    tokens, positions = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
    tokens[: int(ends[-1])] = rows["tokens"][mask]
    positions[: int(ends[-1])] = (place - starts[:, None])[mask]
    if filled := size - int(ends[-1]):
        positions[-filled:] = torch.arange(filled)
        lengths.append(filled)
    found = target_mask.flatten().nonzero()[:, 0]
    if not len(found):  # one place whose result no mask lets through: passes and collectives want some work
        found = torch.zeros(1, dtype=torch.int64)
    row = found // target_mask.shape[1]
    before = torch.maximum(place[:, first:].flatten()[found] - 1, starts[row])
    sent = rows.clone(recurse=False)
    sent["target_mask"] = target_mask
    last = (ends - 1).clamp(min=0)
    targets = rows["tokens"][:, first:].flatten()[found]
    num_real = len(rows) * counts
    return Packed(tokens[None], positions[None], tuple(lengths), before, targets, found, last, sent, num_real)
