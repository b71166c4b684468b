"""Tensors of an engine as regions of a checkpoint's tensors: the whole algebra of weight maps, in integers.

An engine fuses, splits, pads and repeats. Whatever it does, each local tensor is a set of boxes, each of which is a
box of one Hugging Face tensor; what no box covers is padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

Box = tuple[tuple[int, int], ...]
"""Half-open intervals, one a dimension."""


def intersection(a: Box, b: Box) -> Box | None:
    """The common box, ``None`` if there is none."""
    both = tuple((max(i[0], j[0]), min(i[1], j[1])) for i, j in zip(a, b, strict=True))
    return both if all(start < stop for start, stop in both) else None


def volume(box: Box) -> int:
    """Elements of a box."""
    return prod(stop - start for start, stop in box)


def whole_box(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, n) for n in shape)


@dataclass(frozen=True)
class Region:
    """``box`` of the checkpoint's tensor ``name`` lies in a local tensor from ``at`` on.

    A local tensor may have more dimensions than the checkpoint's (experts stacked in one): ``at`` then begins with the
    index of each.
    ``transposed``: a matrix lies with its dimensions swapped.
    """

    name: str
    box: Box
    at: tuple[int, ...]
    transposed: bool = False

    def place(self, part: Box) -> tuple[slice, ...]:
        """Where ``part``, a box inside ``box``, lies in the local tensor."""
        inside = [(a - start, b - start) for (a, b), (start, _) in zip(part, self.box, strict=True)]
        if self.transposed:
            inside.reverse()
        lead = len(self.at) - len(inside)
        fixed = [slice(index, index + 1) for index in self.at[:lead]]
        return (*fixed, *(slice(n + a, n + b) for n, (a, b) in zip(self.at[lead:], inside, strict=True)))


@dataclass(frozen=True)
class Stored:
    """A local tensor of an engine.

    ``name`` is the engine's, ``slot`` its name without the position of its stage: ranks of different stages hold
    different layers in equal slots. ``layer`` orders buckets: the checkpoint's layer, -1 for the embedding.
    """

    name: str
    shape: tuple[int, ...]
    regions: tuple[Region, ...]
    layer: int
    slot: str = ""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def padding(self) -> int:
        """Elements that stand for nothing of the checkpoint."""
        return self.numel - sum(volume(region.box) for region in self.regions)


class Layout(Protocol):
    """What every rank of a pool holds, in an engine's naming."""

    @property
    def num_ranks(self) -> int: ...

    def stored(self, rank: int) -> tuple[Stored, ...]:
        """Local tensors of a rank, in a fixed order."""


def stacked(parts: Sequence[tuple[str, tuple[int, int], int | None]]) -> tuple[Region, ...]:
    """Rows of several checkpoint tensors one after another: ``(name, (start, stop), number of columns or None)``."""
    found, at = [], 0
    for name, rows, columns in parts:
        box: Box = (rows,) if columns is None else (rows, (0, columns))
        found.append(Region(name, box, (at,) if columns is None else (at, 0)))
        at += rows[1] - rows[0]
    return tuple(found)
