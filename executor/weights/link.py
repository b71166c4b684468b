"""New weights from the ranks that train to ranks that generate elsewhere, whatever engines and layouts they have.

Every element of the model is sent once: the first rank that holds it is the root of a channel to all receivers, and
broadcasts its local tensors as they lie, bucket by bucket. A receiver copies the boxes that its own layout needs out of
one bucket while the next is on its way: besides its weights it holds two buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from executor.collectives import meeting_store
from executor.records import COLLECTIVE_TIMEOUT_S, WeightsMoved
from executor.weights.checksum import Sums, keys_of, sum_of_each
from executor.weights.move import copy_needed, regions_by_name
from executor.weights.mover import MoveLog
from executor.weights.regions import volume
from profiles.errors import InputError
from simulator.plan.groups import LINK_BUCKET_BYTES, in_buckets

if TYPE_CHECKING:
    from executor.collectives import CommClock
    from executor.weights.architecture import Architecture
    from executor.weights.mover import Tensors
    from executor.weights.regions import Layout, Stored
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class PoolLink:
    """Where two pools meet, and the degrees of both. ``sends``: this is the side that trains."""

    address: str
    senders: Degrees
    receivers: Degrees
    sends: bool
    bucket_bytes: int = LINK_BUCKET_BYTES


def parts_to_send(arch: Architecture, source: Layout) -> list[tuple[Stored, ...]]:
    """What each rank of the training side sends: together every element of the model, none of them twice.

    The list ends with the last rank that sends something. A local tensor that holds anything new goes whole, so padding
    and boxes next to the new one go with it. ``InputError`` where the ranks together lack a part.
    """
    lacking = sum(torch.Size(tensor.shape).numel() for tensor in arch.tensors().values())
    seen: set[Any] = set()
    found: list[tuple[Stored, ...]] = []
    for rank in range(source.num_ranks):
        mine = []
        for stored in source.stored(rank):
            new = {(region.name, region.box) for region in stored.regions} - seen
            if new:
                mine.append(stored)
                seen |= new
                lacking -= sum(volume(box) for _, box in new)
        found.append(tuple(mine))
        if lacking == 0:
            return found
    raise InputError(f"the ranks that train hold {-lacking:+,} elements more or less than the model has")


def open_store(link: PoolLink, rank: int, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Any:
    """Where the two pools meet: served by the first rank that sends, joined by the others.

    The server should open as soon as the address is known: until somebody listens there, any process may take the port.
    """
    return meeting_store(link.address, link.sends and rank == 0, timedelta(seconds=timeout_s))


def serve_early(link: PoolLink | None, rank: int, timeout_s: float) -> Any:
    """The store if it is this rank's to serve, else ``None``: the others come when they have loaded."""
    return open_store(link, rank, timeout_s) if link is not None and link.sends and rank == 0 else None


class PoolBroadcast:
    """A ``WeightMover`` between two pools: one rank's end.

    ``source`` is the layout of the senders, known on both sides; ``target`` that of the receivers, known on theirs.
    ``store`` is what ``open_store`` gave, where it was called before. After a move ``sums`` has the senders' checksums
    on each rank that receives.
    """

    def __init__(
        self,
        rank: int,
        link: PoolLink,
        arch: Architecture,
        source: Layout,
        device: torch.device,
        clock: CommClock,
        *,
        target: Layout | None = None,
        timeout_s: float = COLLECTIVE_TIMEOUT_S,
        store: Any = None,
    ) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self.rank, self.link, self.arch, self.clock = rank, link, arch, clock
        self.log = MoveLog()
        self.sums: Sums = {}
        self._parts = parts_to_send(arch, source)
        self._needed = regions_by_name(target.stored(rank)) if target is not None else {}
        self._root = dist.BroadcastOptions()
        self._root.rootRank = self._root.rootTensor = 0
        joined = [root for root, parts in enumerate(self._parts) if parts and (not link.sends or root == rank)]
        self._store = store or open_store(link, rank, timeout_s)
        self._channels = {root: self._join(root, device) for root in joined}

    def _join(self, root: int, device: torch.device) -> Any:
        """The process group of one sender (its rank 0) and all receivers, apart from the pools' own groups."""
        mine = dist.PrefixStore(f"weights/{root}", self._store)  # type: ignore[attr-defined]
        rank, size = 0 if self.link.sends else 1 + self.rank, 1 + self.link.receivers.num_ranks
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout  # noqa: SLF001 - torch has no other way to say it
            return dist.ProcessGroupNCCL(mine, rank, size, options)
        return dist.ProcessGroupGloo(mine, rank, size, self._timeout)

    def move(self, source: Tensors, target: Tensors) -> None:
        """See ``WeightMover``: senders give their tensors as ``source``, receivers theirs as ``target``."""
        if self.link.sends:
            self._send(source)
        else:
            self._receive(target)

    def _send(self, tensors: Tensors) -> None:
        """Broadcast what this rank has to send, and its checksums; a rank that sends nothing returns at once."""
        sent_bytes = bucket_bytes = 0
        for root, channel in self._channels.items():
            waiting = []
            with self.clock.running():
                for bucket in self._buckets(root, _some(tensors).element_size()):
                    flat = torch.cat([tensors[stored.name].reshape(-1) for stored in bucket])
                    waiting.append((channel.broadcast([flat], self._root), flat))
                    sent_bytes += flat.nbytes
                    bucket_bytes = max(bucket_bytes, sum(buffer.nbytes for _, buffer in waiting))
                    if len(waiting) == 2:  # as many under way as receivers hold
                        waiting.pop(0)[0].wait()
                for work, _ in waiting:
                    work.wait()
            channel.broadcast([sum_of_each(self._parts[root], tensors, self.arch)], self._root).wait()
        self.log.note(WeightsMoved(0, sent_bytes, bucket_bytes))

    def _receive(self, tensors: Tensors) -> None:
        """Fill ``tensors``, those of this rank in the target layout, in place; keep the senders' checksums."""
        some, received_bytes, bucket_bytes = _some(tensors), 0, 0
        coming = [(root, bucket) for root in self._channels for bucket in self._buckets(root, some.element_size())]
        self.sums = {}
        ahead = self._start(*coming[0], some)
        for i, (root, bucket) in enumerate(coming):
            work, flat = ahead
            last = i + 1 == len(coming) or coming[i + 1][0] != root
            if not last:
                ahead = self._start(*coming[i + 1], some)
                bucket_bytes = max(bucket_bytes, flat.nbytes + ahead[1].nbytes)
            bucket_bytes = max(bucket_bytes, flat.nbytes)
            with self.clock.running():
                work.wait()
            if last:
                self.sums |= self._sums_from(root, some)
                if i + 1 < len(coming):
                    ahead = self._start(*coming[i + 1], some)
            received_bytes += flat.nbytes
            self._unpack(bucket, flat, tensors)
        self.log.note(WeightsMoved(received_bytes, 0, bucket_bytes))

    def _unpack(self, bucket: list[Stored], flat: torch.Tensor, tensors: Tensors) -> None:
        """Copy the boxes that this rank needs out of a bucket."""
        at = 0
        for stored in bucket:
            part = flat[at : at + stored.numel].view(stored.shape)
            at += stored.numel
            for region in stored.regions:
                copy_needed(part, region, self._needed.get(region.name, ()), tensors)

    def _sums_from(self, root: int, like: torch.Tensor) -> Sums:
        keys = keys_of(self._parts[root])
        values = torch.empty(len(keys), dtype=torch.int64, device=like.device)
        self._channels[root].broadcast([values], self._root).wait()
        return dict(zip(keys, values.tolist(), strict=True))

    def _start(self, root: int, bucket: list[Stored], like: torch.Tensor) -> tuple[Any, torch.Tensor]:
        flat = like.new_empty(sum(stored.numel for stored in bucket))
        return self._channels[root].broadcast([flat], self._root), flat

    def _buckets(self, root: int, itemsize: int) -> list[list[Stored]]:
        """A sender's tensors in order, at most ``bucket_bytes`` together; a larger one has a bucket of its own."""
        parts = self._parts[root]
        buckets = in_buckets([stored.numel * itemsize for stored in parts], self.link.bucket_bytes)
        return [[parts[i] for i in bucket] for bucket in buckets]


def _some(tensors: Tensors) -> torch.Tensor:
    return next(iter(tensors.values()))
