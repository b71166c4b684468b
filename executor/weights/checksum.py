"""Sums that tell whether two layouts hold the same weights: over elements, so any cut of a tensor adds up alike."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from executor.checks import UnequalWeightsError, bits_of, pieces
from executor.weights.move import view_of
from executor.weights.regions import Box, volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from executor.records import Identity
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout, Stored

    LaidOut = tuple[Layout, Mapping[str, torch.Tensor]]
    """Local tensors of a rank, and the layout that names them."""

T = TypeVar("T")

Sums = dict[tuple[str, Box], int]
"""By checkpoint tensor and box."""


def box_sum(values: torch.Tensor, box: Box, shape: tuple[int, ...], name: str) -> torch.Tensor:
    """Sum over the elements of ``box`` of bits times a weight of the place in the whole tensor, modulo 2^64.

    A scalar int64 where ``values`` are: nothing waits for it. It takes ``SCRATCH_BYTES`` at most, whatever the box.
    """
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for part in pieces(values.shape):
        place = torch.zeros((), dtype=torch.int64, device=values.device)
        for (first, _), piece, n in zip(box, part, shape, strict=True):
            at = torch.arange(first + piece.start, first + piece.stop, device=values.device)
            place = (place * n)[..., None] + at
        place.mul_(2).add_(1).mul_(2 * zlib.crc32(name.encode()) + 1)
        total += place.mul_(bits_of(values[part])).sum()
    return total


def sums_of_stored(parts: Iterable[Stored], tensors: Mapping[str, torch.Tensor], arch: Architecture) -> Sums:
    """The sum of every region of some local tensors, those of ``layout.stored(rank)`` or a part of them."""
    parts = list(parts)
    found = sum_of_each(parts, tensors, arch)
    return dict(zip(keys_of(parts), found.tolist(), strict=True))


def sum_of_each(parts: Sequence[Stored], tensors: Mapping[str, torch.Tensor], arch: Architecture) -> torch.Tensor:
    """The sums of ``keys_of(parts)``, ``[keys]`` int64, on the tensors' device."""
    whole, found = arch.tensors(), {}
    for stored in parts:
        for region in stored.regions:
            part = view_of(tensors[stored.name], region, region.box)
            found[region.name, region.box] = box_sum(part, region.box, whole[region.name].shape, region.name)
    return torch.stack(list(found.values()))


def keys_of(parts: Iterable[Stored]) -> list[tuple[str, Box]]:
    """The boxes that local tensors hold, each once, in a fixed order."""
    return list(dict.fromkeys((region.name, region.box) for stored in parts for region in stored.regions))


def totals(parts: Sums) -> dict[str, int]:
    """Sums of whole tensors from those of distinct boxes."""
    found: dict[str, int] = {}
    for (name, _), value in parts.items():
        found[name] = (found.get(name, 0) + value) % (1 << 64)
    return found


def require_equal(arch: Architecture, trained: Sums, generating: Sequence[Sums]) -> None:
    """Raise ``UnequalWeightsError`` for the first tensor in which ranks that generate differ from what was ``trained``.

    ``generating``: each rank's sums. Boxes that several ranks hold must agree among them. Tensors whose distinct boxes
    overlap have no sum of the whole, and are compared among the generating ranks alone.
    """
    first: Sums = {}
    for rank, sums in enumerate(generating):
        for key, value in sums.items():
            if first.setdefault(key, value) != value:
                raise UnequalWeightsError(f"rank {rank} generates with other values of {key[0]} than its peers")
    whole, generated = {tensor.name for tensor in arch.tensors().values()}, totals(first)
    comparable = whole - _overlapping(arch, trained) - _overlapping(arch, first)
    for name, value in totals(trained).items():
        if name in comparable and generated.get(name) != value:
            raise UnequalWeightsError(f"after the transition {name} differs from what was trained")


def require_generated(arch: Architecture, identity: Identity, training: LaidOut, generation: LaidOut) -> None:
    """Compare what all ranks of a pool generate with what they train; every rank of the pool calls this."""
    mine = [sums_of_stored(layout.stored(identity.rank), tensors, arch) for layout, tensors in (training, generation)]
    everyone = _from_everyone(identity, mine)
    require_equal(
        arch, {box: value for trained, _ in everyone for box, value in trained.items()}, [sums for _, sums in everyone]
    )


def require_arrived(
    arch: Architecture, layout: Layout, identity: Identity, tensors: Mapping[str, torch.Tensor], trained: Sums
) -> None:
    """Compare what all ranks of a generation pool have with the senders' sums; every rank of the pool calls this."""
    require_equal(arch, trained, _from_everyone(identity, sums_of_stored(layout.stored(identity.rank), tensors, arch)))


def _from_everyone(identity: Identity, mine: T) -> list[T]:
    """What each rank of the pool has, in the order of ranks."""
    if identity.num_ranks == 1:
        return [mine]
    everyone: list[Any] = [None] * identity.num_ranks
    dist.all_gather_object(everyone, mine)
    return everyone


def _overlapping(arch: Architecture, sums: Sums) -> set[str]:
    """Tensors whose boxes overlap, so sums of distinct boxes are not the whole."""
    volumes: dict[str, int] = {}
    for name, box in sums:
        volumes[name] = volumes.get(name, 0) + volume(box)
    return {name for name, size in volumes.items() if size != volume(tuple((0, n) for n in arch.tensors()[name].shape))}
