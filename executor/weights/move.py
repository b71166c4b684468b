"""Moves weights between two layouts of one pool: a transfer plan, carried out on one rank.

Gathers come first, bucket by bucket, then what is left is exchanged, layer by layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.weights.regions import Box, Region, intersection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.collectives import Group
    from executor.weights.counting_collectives import CountingCollectives
    from executor.weights.mover import Tensors
    from executor.weights.plan import ExchangeBucket, GatherBucket, Piece, TransferPlan
    from executor.weights.regions import Stored


def view_of(tensor: torch.Tensor, region: Region, part: Box) -> torch.Tensor:
    """The box ``part`` of a checkpoint tensor inside a local tensor, in the checkpoint's orientation; shares memory."""
    found = tensor[region.place(part)]
    found = found.reshape(found.shape[len(region.at) - len(region.box) :])
    return found.t() if region.transposed else found


class Resharder:
    """A ``WeightMover`` between two layouts of the same ranks.

    ``group`` is the process group of ``plan.group_of(rank)``, needed where the plan gathers.
    """

    def __init__(
        self, plan: TransferPlan, rank: int, collectives: CountingCollectives, group: Group | None = None
    ) -> None:
        self.plan, self.rank = plan, rank
        self._collectives, self._group = collectives, group
        target = plan.target.stored(rank)
        self._needed = regions_by_name(target)
        self._padded = [stored.name for stored in target if stored.padding]

    def move(self, source: Tensors, target: Tensors) -> None:
        """See ``WeightMover``."""
        with torch.no_grad():
            for name in self._padded:
                target[name].zero_()
            own = self.plan.group_of(self.rank)
            for bucket in self.plan.gathers[own] if own else ():
                assert self._group is not None, "a plan with gathers needs the group's handle"
                _gather(bucket, source, target, self._needed, self._collectives, self._group)
            for exchange in self.plan.exchanges:
                exchange_bucket(exchange, self.rank, source, target, self._collectives)


def regions_by_name(stored: tuple[Stored, ...]) -> dict[str, list[tuple[Stored, Region]]]:
    """What a rank needs of each checkpoint tensor, and in which of its local tensors."""
    found: dict[str, list[tuple[Stored, Region]]] = {}
    for tensor in stored:
        for region in tensor.regions:
            found.setdefault(region.name, []).append((tensor, region))
    return found


def _gather(
    bucket: GatherBucket,
    source: Tensors,
    target: Tensors,
    needed: dict[str, list[tuple[Stored, Region]]],
    collectives: CountingCollectives,
    group: Group,
) -> None:
    """One all-gather of the bucket, then copies of what this rank needs of it; the buffer is freed with the bucket."""
    each, members = bucket.elements_of_each, bucket.members
    mine = members[group.index]
    buffer = source[mine[0].name].new_empty(each * group.size)
    at = group.index * each
    for stored in mine:
        buffer[at : at + stored.numel].view(stored.shape).copy_(source[stored.name])
        at += stored.numel
    collectives.all_gather_in_place([buffer], group)
    at = 0
    for table in members:
        for stored in table:
            part = buffer[at : at + stored.numel].view(stored.shape)
            at += stored.numel
            for region in stored.regions:
                copy_needed(part, region, needed.get(region.name, ()), target)


def copy_needed(
    part: torch.Tensor, region: Region, wanted: list[tuple[Stored, Region]] | tuple[()], target: Tensors
) -> None:
    """Copy what ``wanted`` regions of the target share with ``region``, which lies in ``part``."""
    for stored, place in wanted:
        both = intersection(region.box, place.box)
        if both is not None:
            view_of(target[stored.name], place, both).copy_(view_of(part, region, both))


def exchange_bucket(
    bucket: ExchangeBucket, rank: int, source: Tensors, target: Tensors, collectives: CountingCollectives
) -> None:
    """Local boxes are copied, the others packed per receiver and sent in one collective."""
    some = next(iter((*source.values(), *target.values())))
    num = collectives.world.size
    sends: list[list[Piece]] = [[] for _ in range(num)]
    gets: list[list[Piece]] = [[] for _ in range(num)]
    crossing = False
    for piece in bucket.pieces:
        here, there = piece.source.rank, piece.target.rank
        if here == there:
            if here == rank:
                _land(piece, source[piece.source.stored.name], target)
            continue
        crossing = True
        if here == rank:
            sends[there].append(piece)
        if there == rank:
            gets[here].append(piece)
    if not crossing:
        return
    send, got = (
        some.new_empty(sum(piece.num_elements for pieces in lists for piece in pieces)) for lists in (sends, gets)
    )
    for piece, part in _parts(send, sends):
        part.copy_(view_of(source[piece.source.stored.name], piece.source.region, piece.box))
    collectives.exchange(send, _sizes(sends), got, _sizes(gets))
    for piece, part in _parts(got, gets):
        view_of(target[piece.target.stored.name], piece.target.region, piece.box).copy_(part)


def _sizes(lists: list[list[Piece]]) -> list[int]:
    return [sum(piece.num_elements for piece in pieces) for pieces in lists]


def _parts(flat: torch.Tensor, lists: list[list[Piece]]) -> Iterator[tuple[Piece, torch.Tensor]]:
    """Each piece's place in a packed buffer, rank after rank."""
    at = 0
    for pieces in lists:
        for piece in pieces:
            shape = [stop - start for start, stop in piece.box]
            yield piece, flat[at : at + piece.num_elements].view(shape)
            at += piece.num_elements


def _land(piece: Piece, held: torch.Tensor, target: Tensors) -> None:
    place = view_of(target[piece.target.stored.name], piece.target.region, piece.box)
    found = view_of(held, piece.source.region, piece.box)
    if place.data_ptr() != found.data_ptr():  # else it lies there already
        place.copy_(found)
