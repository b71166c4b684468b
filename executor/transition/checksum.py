"""Sums that tell whether two layouts hold the same weights: over elements, so any cut of a tensor adds up alike."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from executor.transition.mover import view_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.transition.regions import Box, Layout

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def box_sum(values: torch.Tensor, box: Box, shape: tuple[int, ...], name: str) -> int:
    """Sum over the elements of ``box`` of bits times a weight of the place in the whole tensor, modulo 2^64."""
    bits = values.contiguous().view(_BITS[values.element_size()]).to(torch.int64)
    place = torch.zeros((), dtype=torch.int64, device=values.device)
    for (start, stop), n in zip(box, shape, strict=True):
        place = place[..., None] * n + torch.arange(start, stop, device=values.device)
    weight = (place * 2 + 1) * (2 * zlib.crc32(name.encode()) + 1)
    return int((bits * weight).sum())


def sums_of(
    layout: Layout, rank: int, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, Box], int]:
    """The sum of every region that a rank holds."""
    found = {}
    for stored in layout.stored(rank):
        for region in stored.regions:
            part = view_of(tensors[stored.name], region, region.box)
            found[region.name, region.box] = box_sum(part, region.box, shapes[region.name], region.name)
    return found


def totals(parts: Mapping[tuple[str, Box], int]) -> dict[str, int]:
    """Sums of whole tensors from those of distinct boxes."""
    found: dict[str, int] = {}
    for (name, _), value in parts.items():
        found[name] = (found.get(name, 0) + value) % (1 << 64)
    return found
