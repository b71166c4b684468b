"""What a run checks of itself: that results are numbers, and that copies of weights are equal.

A check that fails raises an error which is nobody's input: the run stops, or resumes from its last checkpoint.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from executor.batch import is_batch
from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from executor.collectives import Group
    from executor.weights.regions import Layout


class NotANumberError(HybridmapError):
    """A call returned NaN, or an update was not finite."""

    exit_status = 1


class UnequalWeightsError(HybridmapError):
    """Two copies of a weight that must be equal are not; names the weight and the ranks."""

    exit_status = 1


def require_numbers(output: Any) -> None:
    """Raise ``NotANumberError`` if a batch holds NaN, or a metric is NaN or infinite; names the column or metric."""
    if is_batch(output):
        for name, column in output.items():
            if column.is_floating_point() and (wrong := column.isnan().flatten(1 if column.ndim > 1 else 0)).any():
                rows = int(wrong.any(1).sum() if wrong.ndim > 1 else wrong.sum())
                raise NotANumberError(f"{name} is NaN in {rows} of {len(column)} rows")
    elif isinstance(output, dict):
        wrong_names = [name for name, value in output.items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong_names:
            shown = ", ".join(f"{name} is {output[name]}" for name in wrong_names)
            raise NotANumberError(f"{shown}; weights that learned from it are lost")


def _one_bit_sum(weight: torch.Tensor) -> torch.Tensor:
    import torch

    total = torch.zeros((), dtype=torch.int64, device=weight.device)
    for part in pieces(weight.shape):
        total += bits_of(weight.detach()[part]).sum()
    return total


def bit_sums(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The sum of each weight's bits read as integers, modulo 2^64: ``[weights]`` int64, in the mapping's order.

    Any cut of a weight adds up alike, and any single bit that differs shows.
    """
    import torch

    return torch.stack([_one_bit_sum(weight) for weight in weights.values()])


SCRATCH_BYTES = 64 << 20
"""What a comparison of weights may hold besides them."""
_SCRATCH_PER_ELEMENT = 32
"""Bytes: an element's own in a row, its bits and its place in int64, and what broadcasting takes meanwhile."""


def pieces(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """A tensor of ``shape`` in pieces whose sums take ``SCRATCH_BYTES`` at most: whole rows, or parts of one."""
    most = SCRATCH_BYTES // _SCRATCH_PER_ELEMENT
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    if row > most:
        for i in range(shape[0]):
            yield from ((slice(i, i + 1), *rest) for rest in pieces(shape[1:]))
        return
    step = max(most // max(row, 1), 1)
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])), *(slice(0, n) for n in shape[1:]))


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """The bits of each element as a number, in int64."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.element_size()]).to(torch.int64)


def require_equal_copies(names: Sequence[str], sums: torch.Tensor, group: Group) -> None:
    """Compare ``sums [names]`` of the members of a group, who must hold equal copies; all of them call this.

    Raises ``UnequalWeightsError`` naming the first weight that differs and the ranks that hold the rarer value.
    """
    text = difference(names, [member.tolist() for member in group.all_gather(sums)], group.ranks)
    if text is not None:
        raise UnequalWeightsError(text)


def difference(names: Sequence[str], sums: Sequence[Sequence[int]], ranks: Sequence[int]) -> str | None:
    """In words, where ``sums [ranks][names]`` are not the same for all ranks; ``None`` if they are."""
    differing = [i for i in range(len(names)) if len({member[i] for member in sums}) > 1]
    if not differing:
        return None
    values = [member[differing[0]] for member in sums]
    most = max(set(values), key=lambda value: (values.count(value), -values.index(value)))
    odd = [str(rank) for value, rank in zip(values, ranks, strict=True) if value != most]
    rest = [str(rank) for value, rank in zip(values, ranks, strict=True) if value == most]
    more = f"; {len(differing) - 1} other weights differ too" if len(differing) > 1 else ""
    who = f"rank {', '.join(odd)} differs from rank {', '.join(rest)}"
    return f"{names[differing[0]]} is not the same on all its replicas: {who}{more}"


def require_equal_totals(found: Mapping[str, int], trained: Mapping[str, int]) -> None:
    """Raise ``UnequalWeightsError`` for the first weight whose bits do not add up to what was trained."""
    for name, total in found.items():
        if (total - trained[name]) % (1 << 64):
            raise UnequalWeightsError(f"after the transition {name} differs from what was trained")


def require_equal_stored(layout: Layout, rank: int, tensors: Mapping[str, torch.Tensor], group: Group) -> None:
    """``require_equal_copies`` of the tensors of which all members of ``group`` store the same regions."""
    members = [{stored.name: stored.regions for stored in layout.stored(member)} for member in group.ranks]
    mine = {stored.name: stored.regions for stored in layout.stored(rank)}
    same = {n: tensors[n] for n, regions in mine.items() if all(held.get(n) == regions for held in members)}
    if same:
        require_equal_copies(list(same), bit_sums(same), group)
