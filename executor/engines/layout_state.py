"""Optimizer states of an engine that has a ``Layout``, as chunks of a checkpoint: Megatron-Core and FSDP2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from executor.checkpoint.shards import Chunk, chunks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from executor.weights.regions import Layout, Stored

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's states of a parameter, by torch's names."""


@dataclass(frozen=True)
class Held:
    """What a rank's optimizer holds of its local tensor ``name``: elements from ``start`` on, in memory order.

    ``states`` are flat and in memory, by the prefix of their names in a checkpoint; ``""`` are the master weights.
    """

    name: str
    start: int
    states: Mapping[str, torch.Tensor]


def chunks_to_read(layout: Layout, rank: int, held: Iterable[Held]) -> list[Chunk]:
    """Views of all states that a rank holds, padding left out."""
    return _chunks({entry.name: entry for entry in layout.stored(rank)}, held)


def chunks_to_write(layout: Layout, rank: int, held: Iterable[Held], alike: Sequence[int]) -> list[Chunk]:
    """Those that this rank writes. Of the ranks ``alike``, which do not divide states among them, the lowest that has a
    region of a tensor writes it: whole copies on tensor-parallel ranks, and a tied head on another stage."""  # noqa: D205, D209
    before = {
        (region.name, region.box)
        for other in alike
        if other < rank
        for stored in layout.stored(other)
        for region in stored.regions
    }
    mine = {
        entry.name: replace(entry, regions=tuple(r for r in entry.regions if (r.name, r.box) not in before))
        for entry in layout.stored(rank)
    }
    return _chunks(mine, held)


def _chunks(stored: Mapping[str, Stored], held: Iterable[Held]) -> list[Chunk]:
    return [
        chunk
        for part in held
        for prefix, values in part.states.items()
        for chunk in chunks_of(stored[part.name], part.start, values, prefix)
    ]
