"""Which box goes from which rank to which: a transition as plain data, from two layouts and nothing else.

Two ways to move. A *gather* all-gathers local tensors inside a group whose members hold distinct parts of equal size:
Table 2's volumes hold for these to the byte. An *exchange* sends each remaining box once to each rank that needs it
and lacks it: tensors that not all members hold a part of (embedding, head), whole copies, padded vocabularies, experts
spread over data-parallel ranks, and everything where layouts do not nest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from executor.weights.architecture import EMBEDDING, HEAD, SCORE
from executor.weights.native_layout import cut_dimension
from executor.weights.regions import Box, Region, Stored, intersection, volume
from profiles.errors import InputError
from simulator.plan.groups import BUCKET_ELEMENTS, in_buckets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout

EVEN = "evenly sharded"
SOME_STAGES = "embedding and head"
WHOLE_COPIES = "whole copies"


@dataclass(frozen=True)
class Holding:
    """A region of one rank's local tensor."""

    rank: int
    stored: Stored
    region: Region


@dataclass(frozen=True)
class Piece:
    """``box`` of a checkpoint tensor, from where it lies to where it goes."""

    box: Box
    source: Holding
    target: Holding
    cause: str

    @property
    def name(self) -> str:
        return self.source.region.name

    @property
    def num_elements(self) -> int:
        return volume(self.box)


@dataclass(frozen=True)
class GatherBucket:
    """Local tensors that a group gathers at once: for each member the same slots, in the same order and shapes."""

    group: tuple[int, ...]
    members: tuple[tuple[Stored, ...], ...]

    @property
    def elements_of_each(self) -> int:
        return sum(stored.numel for stored in self.members[0])


@dataclass(frozen=True)
class ExchangeBucket:
    """Boxes that change ranks at once, over all ranks; ``Piece.source.rank`` may equal the target's."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class TransferPlan:
    """All of a transition. ``gathers`` by group in order; ``exchanges`` in the order that all ranks follow."""

    source: Layout
    target: Layout
    gathers: dict[tuple[int, ...], tuple[GatherBucket, ...]]
    exchanges: tuple[ExchangeBucket, ...]

    def group_of(self, rank: int) -> tuple[int, ...]:
        """The gathering group of a rank; empty where nothing gathers."""
        return next((group for group in self.gathers if rank in group), ())

    def received_elements(self, rank: int) -> dict[str, int]:
        """Elements that a rank gets from others, by cause."""
        found: dict[str, int] = {}
        group = self.group_of(rank)
        for bucket in self.gathers[group] if group else ():
            for stored in bucket.members[0]:
                outside = any(region.name in (EMBEDDING, HEAD, SCORE) for region in stored.regions)
                cause = EVEN if stored.slot in self.even_slots else SOME_STAGES if outside else WHOLE_COPIES
                found[cause] = found.get(cause, 0) + (len(group) - 1) * stored.numel
        for piece in self._crossing:
            if piece.target.rank == rank:
                found[piece.cause] = found.get(piece.cause, 0) + piece.num_elements
        return found

    @property
    def is_local(self) -> bool:
        """Whether every rank has what it needs already: no byte crosses."""
        return not self._crossing and not any(self.gathers.values())

    @cached_property
    def even_slots(self) -> frozenset[str]:
        """Slots that every group gathers and no two ranks of a training replica hold alike: Table 2's model.

        An embedding on one stage alone is not among them, nor are norms, whole copies on all tensor-parallel ranks.
        """
        groups = [{s.slot for bucket in buckets for s in bucket.members[0]} for buckets in self.gathers.values()]
        copies: dict[str, int] = {}
        holders: dict[tuple[str, Box], int] = {}
        for stored in self._gathered:
            for region in stored.regions:
                holders[region.name, region.box] = holders.get((region.name, region.box), 0) + 1
        for stored in self._gathered:
            most = max(holders[region.name, region.box] for region in stored.regions)
            copies[stored.slot] = max(copies.get(stored.slot, 0), most)
        fewest = min(copies.values(), default=0)  # as many as there are training replicas
        common = set.intersection(*groups) if groups else set()
        return frozenset(slot for slot in common if copies[slot] == fewest)

    @cached_property
    def _gathered(self) -> tuple[Stored, ...]:
        """Every local tensor that some rank gathers, one entry a rank."""
        return tuple(
            stored
            for buckets in self.gathers.values()
            for bucket in buckets
            for member in bucket.members
            for stored in member
        )

    @cached_property
    def _crossing(self) -> tuple[Piece, ...]:
        return tuple(p for bucket in self.exchanges for p in bucket.pieces if p.source.rank != p.target.rank)


def plan_transfers(
    arch: Architecture,
    source: Layout,
    target: Layout,
    groups: Sequence[Sequence[int]] = (),
    *,
    bucket_elements: int = BUCKET_ELEMENTS,
) -> TransferPlan:
    """How ``target`` gets what it needs. ``groups`` are those that all-gather (``gather_groups`` of the simulator);
    without them everything is exchanged. ``InputError`` where the source holds no part that the target needs."""  # noqa: D205, D209
    if source.num_ranks != target.num_ranks:
        raise InputError(f"one pool, two sizes: {source.num_ranks} ranks hold, {target.num_ranks} ranks need")
    have = [source.stored(rank) for rank in range(source.num_ranks)]
    need = [target.stored(rank) for rank in range(target.num_ranks)]
    gathers, even = {}, {}
    for group in (tuple(g) for g in groups if len(g) > 1):
        slots = _even_slots([have[rank] for rank in group])
        slots = _sufficient(slots, [have[r] for r in group], [need[r] for r in group])
        names = frozenset(r.name for s in have[group[0]] if s.slot in slots for r in s.regions)
        names |= frozenset(r.name for m in group for s in have[m] if s.slot in slots for r in s.regions)
        gathers[group] = _gather_buckets(group, have, slots, bucket_elements)
        even[group] = names
    exchanges = _exchange_buckets(arch, _holders(have), have, need, even, bucket_elements)
    return TransferPlan(source, target, gathers, exchanges)


def _even_slots(members: Sequence[tuple[Stored, ...]]) -> set[str]:
    """Slots that every member has, of one shape, without padding, no two members the same part."""
    tables = [{stored.slot: stored for stored in table} for table in members]
    found = set()
    for slot, first in tables[0].items():
        parts = [table.get(slot) for table in tables]
        if any(p is None or p.shape != first.shape or p.padding for p in parts):
            continue
        boxes = [(r.name, r.box) for p in parts if p is not None for r in p.regions]
        if len(set(boxes)) == len(boxes):
            found.add(slot)
    return found


def _sufficient(slots: set[str], have: Sequence[tuple[Stored, ...]], need: Sequence[tuple[Stored, ...]]) -> set[str]:
    """Of ``slots`` those whose tensors cover whatever the members need of them."""
    parts: dict[str, set[Box]] = {}
    slots_of: dict[str, set[str]] = {}
    for table in have:
        for stored in table:
            for region in stored.regions:
                slots_of.setdefault(region.name, set()).add(stored.slot)
                if stored.slot in slots:
                    parts.setdefault(region.name, set()).add(region.box)
    lacking: set[str] = set()
    for table in need:
        for stored in table:
            for region in stored.regions:
                met = [intersection(region.box, box) for box in parts.get(region.name, ())]
                if sum(volume(box) for box in met if box is not None) != volume(region.box):
                    lacking |= slots_of.get(region.name, set())
    return slots - lacking


def _gather_buckets(
    group: tuple[int, ...], have: Sequence[tuple[Stored, ...]], slots: set[str], bucket_elements: int
) -> tuple[GatherBucket, ...]:
    taken = [stored for stored in have[group[0]] if stored.slot in slots]
    buckets = in_buckets([stored.numel * len(group) for stored in taken], bucket_elements)
    tables = [{stored.slot: stored for stored in have[rank]} for rank in group]
    return tuple(
        GatherBucket(group, tuple(tuple(table[taken[i].slot] for i in bucket) for table in tables))
        for bucket in buckets
    )


def _holders(have: Sequence[tuple[Stored, ...]]) -> dict[str, dict[Box, list[Holding]]]:
    """Who holds which part of which tensor."""
    found: dict[str, dict[Box, list[Holding]]] = {}
    for rank, table in enumerate(have):
        for stored in table:
            for region in stored.regions:
                found.setdefault(region.name, {}).setdefault(region.box, []).append(Holding(rank, stored, region))
    return found


def _exchange_buckets(
    arch: Architecture,
    holders: dict[str, dict[Box, list[Holding]]],
    have: Sequence[tuple[Stored, ...]],
    need: Sequence[tuple[Stored, ...]],
    even: dict[tuple[int, ...], frozenset[str]],
    bucket_elements: int,
) -> tuple[ExchangeBucket, ...]:
    by_layer: dict[int, list[Piece]] = {}
    layers = {tensor.name: tensor.layer for tensor in arch.tensors().values()}
    for rank, table in enumerate(need):
        gathered = next((names for group, names in even.items() if rank in group), frozenset())
        for stored in table:
            for region in stored.regions:
                if region.name not in gathered:
                    found = pieces_of(arch, holders, Holding(rank, stored, region))
                    by_layer.setdefault(layers[region.name], []).extend(found)
    return tuple(_merged(by_layer, bucket_elements))


def _merged(by_layer: dict[int, list[Piece]], bucket_elements: int) -> Iterator[ExchangeBucket]:
    """Pieces in the order of their layers, as many to a bucket as no rank sends and gets more than fits."""
    pieces: list[Piece] = []
    held: Counter[int] = Counter()
    for layer in sorted(by_layer):
        for piece in (part for whole in by_layer[layer] for part in _cut(whole, bucket_elements)):
            ends = {piece.source.rank, piece.target.rank}
            crossing = piece.num_elements if len(ends) == 2 else 0
            if crossing and pieces and max(held[rank] for rank in ends) + crossing > bucket_elements:
                yield ExchangeBucket(tuple(pieces))
                pieces, held = [], Counter()
            pieces.append(piece)
            held.update(dict.fromkeys(ends, crossing))
    if pieces:
        yield ExchangeBucket(tuple(pieces))


def _cut(piece: Piece, most: int) -> Iterator[Piece]:
    """A piece that changes ranks, by rows, in parts of at most ``most`` elements; one row is never cut."""
    (start, stop), rest = piece.box[0], piece.box[1:]
    rows = max(most // volume(rest), 1) if piece.source.rank != piece.target.rank else stop - start
    for first in range(start, stop, rows):
        yield replace(piece, box=((first, min(first + rows, stop)), *rest))


def pieces_of(arch: Architecture, holders: dict[str, dict[Box, list[Holding]]], target: Holding) -> list[Piece]:
    """The pieces that make up one region of one rank: its own parts first, else from the nearest rank that has them."""
    region, found, covered = target.region, [], 0
    for box, who in holders.get(region.name, {}).items():
        both = intersection(region.box, box)
        if both is None:
            continue
        nearest = min(who, key=lambda h: (abs(h.rank - target.rank), h.rank))
        found.append(Piece(both, nearest, target, _cause(arch, nearest, target)))
        covered += volume(both)
    if covered != volume(region.box):
        raise InputError(
            f"rank {target.rank} needs {volume(region.box):,} elements of {region.name}, the ranks hold {covered:,} "
            "of them exactly once"
        )
    return found


def _cause(arch: Architecture, source: Holding, target: Holding) -> str:
    """Why a piece is exchanged and not gathered, in words of the weight map."""
    name = target.region.name
    if name == EMBEDDING and target.stored.layer == arch.num_layers:
        return "tied head"
    if name in (EMBEDDING, HEAD, SCORE):
        padded = source.stored.padding or target.stored.padding
        return "padded vocabulary" if padded else SOME_STAGES
    if cut_dimension(name) is None:
        return WHOLE_COPIES
    return "experts" if ".experts." in name else "layers"
