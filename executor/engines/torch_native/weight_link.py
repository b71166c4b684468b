"""New weights from the ranks that train to ranks that generate elsewhere: bucketed broadcasts between two pools.

Each rank of the first training replica is the root of a channel to all receivers, and sends its flat buffer as it
lies, cut into buckets of whole parameters. A receiver keeps the part of each bucket that belongs to its own slice,
while the next bucket is on its way; so besides its weights it holds two buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from executor.checks import bit_sums
from executor.engines.torch_native.comms import COLLECTIVE_TIMEOUT_S
from executor.engines.torch_native.flat import extents_of
from executor.engines.torch_native.resharding import training_slice
from executor.engines.torch_native.weights import parameters_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executor.engines.torch_native.comms import CommClock
    from executor.engines.torch_native.config import DecoderConfig
    from executor.engines.torch_native.flat import Extent, FlatParameters
    from simulator.groups import Degrees


@dataclass(frozen=True)
class LinkSpec:
    """Where two pools meet, and the degrees of both. ``sends``: this is the side that trains."""

    address: str
    senders: Degrees
    receivers: Degrees
    sends: bool
    bucket_bytes: int = 64 << 20

    @property
    def num_channels(self) -> int:
        """One for each rank of a training replica; the other replicas hold the same and stay out."""
        return self.senders.p * self.senders.t


class WeightLink:
    """One rank's end. All ranks of both sides call ``send`` or ``receive`` equally often."""

    def __init__(
        self, rank: int, spec: LinkSpec, config: DecoderConfig, device: torch.device, clock: CommClock,
        timeout_s: float = COLLECTIVE_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self._timeout = timedelta(seconds=timeout_s)
        self.rank, self.spec, self.config, self.clock = rank, spec, config, clock
        self._root = dist.BroadcastOptions()
        self._root.rootRank = self._root.rootTensor = 0
        joined = range(spec.num_channels)
        if spec.sends:
            joined = range(rank, rank + 1) if rank < spec.num_channels else range(0)
        host, _, port = spec.address.removeprefix("tcp://").rpartition(":")
        serves = spec.sends and rank == 0
        self._store = dist.TCPStore(host, int(port), is_master=serves, wait_for_workers=False, timeout=self._timeout)  # type: ignore[attr-defined]
        self._channels = {source: self._join(source, device) for source in joined}

    def _join(self, source: int, device: torch.device) -> Any:
        """The process group of one sender (its rank 0) and all receivers, apart from the pools' own groups."""
        mine = dist.PrefixStore(f"weights/{source}", self._store)  # type: ignore[attr-defined]
        rank, size = 0 if self.spec.sends else 1 + self.rank, 1 + self.spec.receivers.num_ranks
        if device.type == "cuda":
            return dist.ProcessGroupNCCL(mine, rank, size, dist.ProcessGroupNCCL.Options())
        return dist.ProcessGroupGloo(mine, rank, size, self._timeout)

    def send(self, flat: FlatParameters) -> None:
        """Start all buckets of this rank's buffer and the sums of its weights' bits, then wait until they are out."""
        sums = bit_sums({str(i): flat.view(flat.data, extent) for i, extent in enumerate(flat.extents)})
        for channel in self._channels.values():
            with self.clock.running():
                sent = [
                    channel.broadcast([flat.data[bucket[0].start : bucket[-1].stop]], self._root)
                    for bucket in buckets_of(flat.extents, self.spec.bucket_bytes // flat.data.element_size())
                ]
                for work in (*sent, channel.broadcast([sums], self._root)):
                    work.wait()

    def receive(self, weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Fill ``weights``, this rank's generation slice, in place; the sums of the trained weights' bits by name."""
        some = next(iter(weights.values()))
        coming = [(s, bucket) for s in self._channels for bucket in self._buckets(s, some.element_size())]
        ahead = self._start(*coming[0], some)
        for i, (source, bucket) in enumerate(coming):
            work, buffer = ahead
            if i + 1 < len(coming):
                ahead = self._start(*coming[i + 1], some)
            with self.clock.running():
                work.wait()
            self._place(source, bucket, buffer, weights)
        return self._sums(some.device)

    def _sums(self, device: torch.device) -> dict[str, int]:
        """What each sender says that its weights add up to; slices of one weight together."""
        trained: dict[str, int] = {}
        for source, channel in self._channels.items():
            extents = self._extents(source)
            sums = torch.empty(len(extents), dtype=torch.int64, device=device)
            with self.clock.running():
                channel.broadcast([sums], self._root).wait()
            for extent, total in zip(extents, sums.tolist(), strict=True):
                parameter = extent.parameter
                if parameter.cut is None:
                    trained[parameter.name] = total
                elif not parameter.is_copy:
                    trained[parameter.name] = trained.get(parameter.name, 0) + total
        return trained

    def _start(self, source: int, bucket: Sequence[Extent], like: torch.Tensor) -> tuple[Any, torch.Tensor]:
        buffer = torch.empty(bucket[-1].stop - bucket[0].start, dtype=like.dtype, device=like.device)
        return self._channels[source].broadcast([buffer], self._root), buffer

    def _extents(self, source: int) -> list[Extent]:
        """Where a sender's buffer holds what."""
        parameters = parameters_of(self.config, training_slice(source, self.spec.senders), value_head=False)
        return extents_of(parameters, self.spec.senders.t)

    def _buckets(self, source: int, itemsize: int) -> list[list[Extent]]:
        return buckets_of(self._extents(source), self.spec.bucket_bytes // itemsize)

    def _place(
        self, source: int, bucket: Sequence[Extent], buffer: torch.Tensor, weights: Mapping[str, torch.Tensor]
    ) -> None:
        theirs = training_slice(source, self.spec.senders)
        mine = training_slice(self.rank, self.spec.receivers)
        for extent in bucket:
            target = weights.get(extent.parameter.name)
            if target is None or extent.parameter.is_copy:
                continue  # another slice's layer, or what comes from its home anyway
            part = buffer[extent.start - bucket[0].start : extent.stop - bucket[0].start].view(extent.shape)
            with torch.no_grad():
                if extent.parameter.cut is None:
                    target.copy_(part)
                else:
                    _copy_overlap(target, mine.index, part, theirs.index, extent.parameter.cut)


def buckets_of(extents: Sequence[Extent], most: int) -> list[list[Extent]]:
    """Extents in order, at most ``most`` elements to a bucket; a larger extent has a bucket of its own."""
    buckets: list[list[Extent]] = []
    for extent in extents:
        if buckets and extent.stop - buckets[-1][0].start <= most:
            buckets[-1].append(extent)
        else:
            buckets.append([extent])
    return buckets


def _copy_overlap(target: torch.Tensor, i: int, part: torch.Tensor, j: int, dim: int) -> None:
    """Copy what the ``i``-th slice of a parameter (``target``) shares with its ``j``-th in another cut (``part``)."""
    size, other = target.shape[dim], part.shape[dim]
    first, last = max(i * size, j * other), min((i + 1) * size, (j + 1) * other)
    if first < last:
        target.narrow(dim, first - i * size, last - first).copy_(part.narrow(dim, first - j * other, last - first))
