"""Collectives of a transition, counted where they happen: what really crossed, not what a formula says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.engines.torch_native.comms import Group


@dataclass
class WireCount:
    """Bytes that this rank sent and got. An all-gather counts as the ring does: each part passes every rank once."""

    sent_bytes: int = 0
    received_bytes: int = 0
    calls: int = 0


@dataclass
class Wire:
    """The collectives that a transition uses, over the pool's ``world``."""

    world: Group
    count: WireCount = field(default_factory=WireCount)

    def all_gather_in_place(self, buffer: torch.Tensor, group: Group) -> None:
        """``buffer [n * k]``: this rank's part lies at its index already; the others' parts are filled in."""
        each = buffer.numel() // group.size
        mine = buffer[group.index * each : (group.index + 1) * each]
        with group.clock.running():
            _all_gather(buffer, mine, group.handle)
        others = (group.size - 1) * mine.nbytes
        self._add(others, others)

    def all_gather_all_in_place(self, buffers: Sequence[torch.Tensor], group: Group) -> None:
        """``all_gather_in_place`` of several buffers as one operation, where the backend can join them."""
        for buffer in buffers:
            self.all_gather_in_place(buffer, group)

    def exchange(self, send: torch.Tensor, to: Sequence[int], got: torch.Tensor, origin: Sequence[int]) -> None:
        """Flat ``send`` holds ``to[r]`` elements for each rank ``r`` in order; ``got`` is filled with ``origin[r]``."""
        with self.world.clock.running():
            dist.all_to_all_single(got, send, list(origin), list(to))
        me = self.world.index
        self._add((sum(to) - to[me]) * send.itemsize, (sum(origin) - origin[me]) * got.itemsize)

    def agree(self, *, ok: bool) -> bool:
        """Whether all ranks say yes; a barrier."""
        if self.world.size == 1:
            return ok
        vote = torch.tensor([int(ok)])
        with self.world.clock.running():
            dist.all_reduce(vote, op=dist.ReduceOp.MIN)
        return bool(vote.item())

    def _add(self, sent: int, received: int) -> None:
        self.count.sent_bytes += sent
        self.count.received_bytes += received
        self.count.calls += 1


def _all_gather(whole: torch.Tensor, part: torch.Tensor, handle: object) -> None:
    """``all_gather_into_tensor``, under the name that this torch prefers."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(whole, part, group=handle)
