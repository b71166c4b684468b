"""New weights from the ranks that train to ranks that generate elsewhere, whatever engines and layouts they have.

Each rank of the first training replica is the root of a channel to all receivers and broadcasts its local tensors as
they lie, bucket by bucket. A receiver copies the boxes that its own layout needs out of one bucket while the next is on
its way: besides its weights it holds two buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from executor.transition.mover import copy_needed, regions_by_name
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from executor.engines.torch_native.comms import CommClock
    from executor.transition.regions import Layout, Stored

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class PoolLink:
    """Where two pools meet. ``num_senders`` ranks hold the model once; ``sends``: this is the side that trains."""

    address: str
    num_senders: int
    num_receivers: int
    sends: bool
    bucket_bytes: int = 64 << 20


class LayoutLink:
    """One rank's end. All senders call ``send`` as often as all receivers call ``receive``."""

    def __init__(self, rank: int, link: PoolLink, source: Layout, device: torch.device, clock: CommClock) -> None:
        self.rank, self.link, self.source, self.clock = rank, link, source, clock
        self.sent_bytes = self.received_bytes = 0
        self._root = dist.BroadcastOptions()
        self._root.rootRank = self._root.rootTensor = 0
        joined = range(link.num_senders)
        if link.sends:
            joined = range(rank, rank + 1) if rank < link.num_senders else range(0)
        host, _, port = link.address.removeprefix("tcp://").rpartition(":")
        serves = link.sends and rank == 0
        self._store = dist.TCPStore(host, int(port), is_master=serves, wait_for_workers=False, timeout=TIMEOUT)  # type: ignore[attr-defined]
        self._channels = {root: self._join(root, device) for root in joined}

    def _join(self, root: int, device: torch.device) -> Any:
        """The process group of one sender (its rank 0) and all receivers, apart from the pools' own groups."""
        mine = dist.PrefixStore(f"layout/{root}", self._store)  # type: ignore[attr-defined]
        rank, size = 0 if self.link.sends else 1 + self.rank, 1 + self.link.num_receivers
        if device.type == "cuda":
            return dist.ProcessGroupNCCL(mine, rank, size, dist.ProcessGroupNCCL.Options())
        return dist.ProcessGroupGloo(mine, rank, size, TIMEOUT)

    def send(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Broadcast this rank's tensors; a rank of another replica than the first has nothing to do."""
        for root, channel in self._channels.items():
            waiting = []
            with self.clock.running():
                for bucket in self._buckets(root, next(iter(tensors.values())).element_size()):
                    flat = torch.cat([tensors[stored.name].reshape(-1) for stored in bucket])
                    waiting.append((channel.broadcast([flat], self._root), flat))
                    self.sent_bytes += flat.nbytes
                    if len(waiting) == 2:  # as many under way as receivers hold
                        waiting.pop(0)[0].wait()
                for work, _ in waiting:
                    work.wait()

    def receive(self, target: Layout, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill ``tensors``, those of this rank in layout ``target``, in place."""
        some, needed = next(iter(tensors.values())), regions_by_name(target.stored(self.rank))
        coming = [(root, bucket) for root in self._channels for bucket in self._buckets(root, some.element_size())]
        ahead = self._start(*coming[0], some)
        for i, (_, bucket) in enumerate(coming):
            work, flat = ahead
            if i + 1 < len(coming):
                ahead = self._start(*coming[i + 1], some)
            with self.clock.running():
                work.wait()
            self.received_bytes += flat.nbytes
            at = 0
            for stored in bucket:
                part = flat[at : at + stored.numel].view(stored.shape)
                at += stored.numel
                for region in stored.regions:
                    copy_needed(part, region, needed.get(region.name, ()), tensors)

    def _start(self, root: int, bucket: list[Stored], like: torch.Tensor) -> tuple[Any, torch.Tensor]:
        flat = like.new_empty(sum(stored.numel for stored in bucket))
        return self._channels[root].broadcast([flat], self._root), flat

    def _buckets(self, root: int, itemsize: int) -> Iterator[list[Stored]]:
        """A sender's tensors in order, at most ``bucket_bytes`` together; a larger one has a bucket of its own."""
        bucket: list[Stored] = []
        size = 0
        for stored in self.source.stored(root):
            if bucket and size + stored.numel * itemsize > self.link.bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(stored)
            size += stored.numel * itemsize
        if bucket:
            yield bucket


def require_whole(source: Layout, num_senders: int, names: Mapping[str, int]) -> None:
    """Raise ``InputError`` unless the first ``num_senders`` ranks hold every element; ``names`` to element counts."""
    held: dict[str, set[Any]] = {}
    for rank in range(num_senders):
        for stored in source.stored(rank):
            for region in stored.regions:
                held.setdefault(region.name, set()).add(region.box)
    for name, size in names.items():
        found = 0
        for box in held.get(name, ()):
            part = 1
            for start, stop in box:
                part *= stop - start
            found += part
        if found != size:
            raise InputError(f"the first {num_senders} ranks hold {found:,} of {size:,} elements of {name}")
