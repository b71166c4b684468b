"""Ranks that live through several runs: importing torch takes a process seconds, most test runs take less.

The actors are those of the product's own Ray launcher with one method more; only where they come from differs. Tests
of placement, of failures and of clean ends take the product's launcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from executor import collectives
from executor.launch.ray import RayLauncher
from executor.launch.ray_rank import RankActor
from executor.records import Identity
from executor.worker.worker import LOOPBACK_HOST, invoke

if TYPE_CHECKING:
    from executor.controller.pools import ResourcePool

FORGETS_S = 10.0
"""A rank that takes longer is taken for one that hangs and started anew, which costs seconds of a core."""


class WarmRank(RankActor):
    """A rank that can be used again."""

    def forget(self) -> None:
        """Drop all roles, and leave the ranks that it met."""
        self._roles.clear()
        self._invoke, self._transport = invoke, ""
        collectives._HANDLES.clear()  # noqa: SLF001
        if dist.is_initialized():
            dist.destroy_process_group()


class WarmLauncher(RayLauncher):
    """Hands out idle ranks, and takes them back when a run stops."""

    def __init__(self, slots: int) -> None:
        super().__init__(cpu_ranks=slots)
        self._idle: list[Any] = []
        self._busy: list[Any] = []

    def _start_ranks(self, pool: ResourcePool) -> list[Any]:
        actor_class = self._ray.remote(WarmRank).options(num_cpus=0)
        while len(self._idle) < pool.num_ranks:
            self._idle.append(actor_class.remote(Identity("idle", 0, 1)))
            self._actors.append(self._idle[-1])
        ranks = [self._idle.pop() for _ in range(pool.num_ranks)]
        self._busy += ranks
        here = [(Identity(pool.name, i, pool.num_ranks), LOOPBACK_HOST) for i in range(pool.num_ranks)]
        self.tell(ranks, "rename", here)
        return ranks

    def stop(self) -> None:
        self.clear()

    def clear(self) -> None:
        for rank in self._busy:
            try:
                self._ray.get(rank.forget.remote(), timeout=FORGETS_S)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
                self._ray.kill(rank)  # a test ended it, or it hangs
                continue
            self._idle.append(rank)
        self._busy = []
        self._lines.clear()

    def close(self) -> None:
        """End the ranks for good."""
        super().clear()
        super().stop()
