"""Collectives of a transition, counted where they happen: what really crossed, not what a formula says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.collectives import Group


@dataclass
class CollectivesCount:
    """Bytes that this rank sent and got. An all-gather counts as the ring does: each part passes every rank once."""

    sent_bytes: int = 0
    received_bytes: int = 0
    calls: int = 0


@dataclass
class CountingCollectives:
    """The collectives that a transition uses, over the pool's ``world``."""

    world: Group
    count: CollectivesCount = field(default_factory=CollectivesCount)

    def all_gather_in_place(self, buffers: Sequence[torch.Tensor], group: Group) -> None:
        """``buffers``, each ``[n * k]``: this rank's part lies at its index already; the others' are filled in."""
        group.all_gather_in_place(buffers)
        for buffer in buffers:
            others = buffer.nbytes // group.size * (group.size - 1)
            self._add(others, others)

    def exchange(self, send: torch.Tensor, to: Sequence[int], got: torch.Tensor, origin: Sequence[int]) -> None:
        """Flat ``send`` holds ``to[r]`` elements for each rank ``r`` in order; ``got`` is filled with ``origin[r]``."""
        with self.world.clock.running():
            dist.all_to_all_single(got, send, list(origin), list(to))
        me = self.world.index
        self._add((sum(to) - to[me]) * send.itemsize, (sum(origin) - origin[me]) * got.itemsize)

    def agree(self, device: torch.device, *, ok: bool) -> bool:
        """Whether all ranks say yes; a barrier. The vote is on ``device``: NCCL takes no tensor of the host."""
        if self.world.size == 1:
            return ok
        vote = torch.full((1,), int(ok), device=device)
        with self.world.clock.running():
            dist.all_reduce(vote, op=dist.ReduceOp.MIN)
        return bool(vote.item())

    def _add(self, sent: int, received: int) -> None:
        self.count.sent_bytes += sent
        self.count.received_bytes += received
        self.count.calls += 1
