"""What a rank writes of a checkpoint and reads back: boxes of whole tensors, by their Hugging Face names.

Files have the form of ``torch.distributed.checkpoint`` in safetensors: each tensor is a box of a whole one, and the
header says where it begins. So any layout can read what any other wrote, and DCP's own reader reads it here. A file
holds one box of a name; a rank that holds several boxes of one tensor writes several files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from executor.checkpoint.manifest import facts_of
from executor.weights.regions import Region, intersection, volume
from profiles.atomic_write import sync
from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from executor.checkpoint.manifest import FileFacts
    from executor.weights.regions import Box, Stored

SHARDING, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Keys of DCP's safetensors header."""


@dataclass(frozen=True)
class Chunk:
    """``box`` of the whole tensor ``name``; ``values`` have the box's shape, and may be a view to be filled."""

    name: str
    box: Box
    values: torch.Tensor


@dataclass(frozen=True)
class EngineState:
    """What an engine saves on one rank: chunks in host memory, and counters that all ranks of the role agree on."""

    chunks: tuple[Chunk, ...] = ()
    counters: dict[str, int] | None = None


def chunks_of(stored: Stored, start: int, values: torch.Tensor, prefix: str = "") -> Iterator[Chunk]:
    """Chunks of a flat range of a local tensor: ``values [n]`` are its elements ``[start, start + n)`` in memory order.

    ``prefix`` goes before the names, for what an optimizer keeps of each parameter. Chunks are views of ``values``.
    """
    for local, offset in boxes_of_range(stored.shape, start, start + values.numel()):
        shape = [b - a for a, b in local]
        part = values[offset : offset + prod(shape)].view(shape)
        for region in stored.regions:
            found = _shared(region, local, part)
            if found is not None:
                yield Chunk(prefix + region.name, *found)


def boxes_of_range(shape: Sequence[int], start: int, stop: int) -> list[tuple[Box, int]]:
    """Elements ``[start, stop)`` of a tensor in memory order as boxes, each with its offset from ``start``.

    At most two for each dimension but the last: the rest of a row, whole rows, the beginning of a row.
    """
    if start >= stop:
        return []
    if len(shape) == 1:
        return [(((start, stop),), 0)]
    each = prod(shape[1:])
    first, last = -(-start // each), stop // each  # whole rows
    if first > last:  # inside one row
        return [
            (((last, last + 1), *box), at) for box, at in boxes_of_range(shape[1:], start % each, stop - last * each)
        ]
    found: list[tuple[Box, int]] = []
    if start % each:
        head = boxes_of_range(shape[1:], start % each, each)
        found += [(((first - 1, first), *box), at) for box, at in head]
    if first < last:
        found.append((((first, last), *((0, n) for n in shape[1:])), first * each - start))
    if stop % each:
        tail = boxes_of_range(shape[1:], 0, stop % each)
        found += [(((last, last + 1), *box), last * each - start + at) for box, at in tail]
    return found


def _shared(region: Region, local: Box, part: torch.Tensor) -> tuple[Box, torch.Tensor] | None:
    """What ``local``, a box of the local tensor with values ``part``, has of a region: whole tensor's box, its view."""
    assert not region.transposed and len(region.at) == len(region.box), "engines keep states as checkpoints lie"
    place = tuple((at, at + b - a) for at, (a, b) in zip(region.at, region.box, strict=True))
    both = intersection(place, local)
    if both is None:
        return None
    box = tuple(
        (a - at + begin, b - at + begin) for (a, b), at, (begin, _) in zip(both, region.at, region.box, strict=True)
    )
    inside = tuple(slice(a - origin, b - origin) for (a, b), (origin, _) in zip(both, local, strict=True))
    return box, part[inside]


def on_host(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """Copies in host memory, which nobody writes to: all under way at once, and waited for once."""
    copies = []
    for chunk in chunks:
        values, is_cuda = chunk.values.detach(), chunk.values.is_cuda
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=is_cuda).copy_(values, non_blocking=True)
        copies.append(Chunk(chunk.name, chunk.box, copy))
    if any(chunk.values.is_cuda for chunk in chunks):
        torch.cuda.synchronize()
    return tuple(copies)


def write_shards(folder: Path, rank: int, chunks: Sequence[Chunk]) -> dict[str, FileFacts]:
    """Write a rank's chunks, synced; the facts of each file by name."""
    files: list[dict[str, Chunk]] = []
    for chunk in chunks:
        place = next((file for file in files if chunk.name not in file), None)
        if place is None:
            files.append(place := {})
        place[chunk.name] = chunk
    found = {}
    for number, file in enumerate(files):
        path = folder / f"rank-{rank:05d}-{number}.safetensors"
        offsets = {name: {OFFSETS: [a for a, _ in chunk.box]} for name, chunk in file.items()}
        tensors = {name: chunk.values for name, chunk in file.items()}
        save_file(tensors, path, metadata={SHARDING: json.dumps(offsets), "format": "pt"})
        sync(path)
        found[path.name] = facts_of(path)
    return found


def read_shards(folder: Path, chunks: Sequence[Chunk]) -> None:
    """Fill chunks from the shards in ``folder``, whoever wrote them; reads no more than it needs.

    ``FileFormatError`` where a tensor is missing, or not all of it is there.
    """
    reader = HuggingFaceStorageReader(str(folder))
    try:
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        planner = _Filling(folder, chunks, metadata)
        with torch.no_grad():
            reader.read_data(planner.create_local_plan(), planner).wait()
    except FileFormatError:
        raise
    except Exception as error:  # safetensors has no error of its own for a header that is wrong
        raise FileFormatError(f"{folder}: not the shards of a checkpoint ({type(error).__name__}: {error})") from error


class _Filling(DefaultLoadPlanner):
    """DCP's planner with destinations that are boxes: as many of a name as this rank holds."""

    def __init__(self, folder: Path, chunks: Sequence[Chunk], metadata: Metadata) -> None:
        super().__init__()
        self._folder, self.metadata = folder, metadata
        self._wanted: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            self._wanted.setdefault(chunk.name, []).append(chunk)

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[Any] = []
        for name, wanted in self._wanted.items():
            stored: Any = self.metadata.state_dict_metadata.get(name)
            if stored is None:
                raise FileFormatError(f"{self._folder}: no shard has {name}")
            local = [
                ChunkStorageMetadata(torch.Size(a for a, _ in c.box), torch.Size(b - a for a, b in c.box))
                for c in wanted
            ]
            found = create_read_items_for_chunk_list(name, stored, local)
            needed, there = sum(volume(c.box) for c in wanted), sum(prod(item.lengths) for item in found)
            if needed != there:
                raise FileFormatError(f"{self._folder}: {name}: {needed:,} elements are needed, {there:,} are there")
            items += found
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        assert index.index is not None
        return self._wanted[index.fqn][index.index].values
