"""The torch-native engine's part of a checkpoint: master weights and moments, from a flat order to boxes and back.

Masters are saved, not what passes run on: those are their rounding, published again after loading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.checkpoint.shards import Chunk, chunks_of
from executor.weights.regions import Region, Stored, whole_box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.collectives import Groups
    from executor.engines.native.flat import Extent
    from executor.engines.native.optimizer import FlatAdamW
    from executor.weights.parameters import Slice


def chunks_to_write(optimizer: FlatAdamW, groups: Groups, piece: Slice) -> list[Chunk]:
    """What this rank writes: its part of the flat order that its data-parallel replicas hold alike, copies left out.

    All ranks together write each element once.
    """
    size = optimizer.flat.num_elements // groups.dp.size
    start = groups.dp.index * size
    return [
        chunk
        for extent in optimizer.flat.extents
        if not extent.parameter.is_copy and (extent.parameter.cut is not None or groups.tp.index == 0)
        for chunk in _chunks(optimizer, piece, extent, start, start + size)
    ]


def chunks_to_read(optimizer: FlatAdamW, piece: Slice) -> list[Chunk]:
    """Views of all that this rank's optimizer holds, to be filled."""
    start, stop = optimizer.held.start, optimizer.held.stop
    return [chunk for extent in optimizer.flat.extents for chunk in _chunks(optimizer, piece, extent, start, stop)]


def _chunks(optimizer: FlatAdamW, piece: Slice, extent: Extent, start: int, stop: int) -> Iterator[Chunk]:
    """The elements ``[start, stop)`` of the flat order that are of one parameter."""
    first, last = max(start, extent.start), min(stop, extent.stop)
    if first >= last:
        return
    stored, origin = stored_of(extent, piece), optimizer.held.start
    for prefix, values in optimizer.named_states().items():
        yield from chunks_of(stored, first - extent.start, values[first - origin : last - origin], prefix)


def stored_of(extent: Extent, piece: Slice) -> Stored:
    """A parameter's slice on this rank as a box of the whole."""
    parameter = extent.parameter
    box = list(whole_box(parameter.shape))
    if parameter.cut is not None:
        each = parameter.shape[parameter.cut] // piece.t
        box[parameter.cut] = (piece.index * each, (piece.index + 1) * each)
    region = Region(parameter.name, tuple(box), (0,) * len(box))
    return Stored(parameter.name, extent.shape, (region,), parameter.layer)
