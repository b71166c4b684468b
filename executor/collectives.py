"""Process groups of one role on its pool, with collectives that count their time, and their autograd forms."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from executor.cores import wait_for_turns
from executor.device_time import DeviceSeconds
from executor.records import COLLECTIVE_TIMEOUT_S
from simulator.plan.groups import (
    Degrees,
    context_coordinate,
    generation_coordinates,
    micro_dp_groups,
    training_coordinates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.records import Identity

LOOPBACK_HOSTS = ("127.0.0.1", "localhost")


class CommClock(DeviceSeconds):
    """Seconds spent in collectives, waiting for other ranks included."""


@dataclass(frozen=True)
class Group:
    """Ranks that communicate, as seen from one of them. A group of one communicates nothing."""

    ranks: tuple[int, ...]
    index: int
    clock: CommClock
    handle: Any = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce in place and return ``tensor``."""
        if self.size > 1:
            with self.clock.running():
                dist.all_reduce(tensor, op=op, group=self.handle)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's ``tensor`` (all of one shape), in group order."""
        if self.size == 1:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in self.ranks]
        with self.clock.running():
            dist.all_gather(gathered, tensor.contiguous(), group=self.handle)
        return gathered

    def all_gather_in_place(self, buffers: Sequence[torch.Tensor]) -> None:
        """Fill flat ``buffers``, each ``[n * k]``, in which this rank's part lies at its index already.

        All of them are under way at once, and none is when this returns or raises.
        """
        if self.size == 1:
            return
        with self.clock.running(), ExitStack() as under_way:
            for buffer in buffers:
                work = _start_gather(buffer, buffer.chunk(self.size)[self.index], self.handle)
                under_way.callback(work.wait)

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of this rank's slice of the flat ``tensor``; its length divides by the group."""
        if self.size == 1:
            return tensor
        parts = list(tensor.chunk(self.size))
        mine = torch.empty_like(parts[self.index])
        with self.clock.running():
            dist.reduce_scatter(mine, parts, group=self.handle)
        return mine

    def broadcast(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Everybody's ``tensor`` becomes that of member ``index``."""
        if self.size > 1:
            with self.clock.running():
                dist.broadcast(tensor, src=self.ranks[index], group=self.handle)
        return tensor

    def send(self, tensor: torch.Tensor, index: int) -> None:
        """Send to member ``index``."""
        with self.clock.running():
            dist.send(tensor.contiguous(), dst=self.ranks[index], group=self.handle)

    def receive(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Fill ``tensor`` with what member ``index`` sends."""
        with self.clock.running():
            dist.recv(tensor, src=self.ranks[index], group=self.handle)
        return tensor


def _start_gather(whole: torch.Tensor, part: torch.Tensor, handle: Any) -> Any:
    """``all_gather_into_tensor``, under the name that this torch prefers."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(whole, part, group=handle, async_op=True)


@dataclass(frozen=True)
class Groups:
    """The groups of one role: training (``tp``, ``cp``, ``pp``, ``dp``, ``copies`` = cp x dp, ``model`` = tp x pp,
    ``ends`` = first and last stage) and generation (``gen_tp``, ``gen_pp``, ``micro_dp``)."""  # noqa: D205, D209

    tp: Group
    cp: Group
    pp: Group
    dp: Group
    copies: Group
    model: Group
    ends: Group
    gen_tp: Group
    gen_pp: Group
    micro_dp: Group


_HANDLES: dict[tuple[int, ...], Any] = {}
"""Process groups of this process by their ranks: roles of one pool that need the same ranks share them."""
_TIMEOUT_S = [COLLECTIVE_TIMEOUT_S]
"""That of the world which this process joined."""


def join_world(
    identity: Identity,
    address: str,
    device: torch.device,
    *,
    alone: bool = False,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> None:
    """Meet the pool's other ranks. The first role of a process does it for all, and its ``timeout_s`` holds.

    A pool of one meets nobody, unless an engine wants a process group even ``alone``.
    """
    if device.type == "cpu":
        wait_for_turns()  # a pool of one, too: gloo takes its weights to other pools
    if dist.is_initialized() or (identity.num_ranks == 1 and not alone):
        return
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=meeting_store(address, identity.rank == 0, timeout),
        rank=identity.rank,
        world_size=identity.num_ranks,
        timeout=timeout,
    )
    _TIMEOUT_S[0] = timeout_s


def meeting_store(address: str, serves: bool, timeout: timedelta) -> dist.TCPStore:  # type: ignore[name-defined]
    """Where ranks find each other. Left alone torch listens on every address of the host, even for 127.0.0.1."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    listening = None
    if serves and host in LOOPBACK_HOSTS:
        listening = socket.create_server((host, int(port))).detach()  # the store closes it
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), is_master=serves, wait_for_workers=False, timeout=timeout, master_listen_fd=listening
    )


def make_groups(rank: int, degrees: Degrees, clock: CommClock) -> Groups:
    """All groups of a role with degrees ``degrees``. Every rank of the pool must call this with the same degrees."""

    def by(key: Callable[[int], Any]) -> Group:
        members: dict[Any, list[int]] = {}
        for r in range(degrees.num_ranks):
            members.setdefault(key(r), []).append(r)
        return own_group(rank, sorted(members.values()), clock)

    def train(*fixed: str) -> Group:
        return by(lambda r: tuple(_training_place(r, degrees)[axis] for axis in fixed))

    def generate(*axes: int) -> Group:
        return by(lambda r: tuple(generation_coordinates(r, degrees)[axis] for axis in axes))

    def end(r: int) -> Any:
        at = _training_place(r, degrees)
        is_end = at["pp"] in (0, degrees.p - 1)
        return (is_end, at["tp"], at["cp"], at["dp"], -1 if is_end else at["pp"])

    return Groups(
        tp=train("cp", "pp", "dp"),
        cp=train("tp", "pp", "dp"),
        pp=train("tp", "cp", "dp"),
        dp=train("tp", "cp", "pp"),
        copies=train("tp", "pp"),
        model=train("cp", "dp"),
        ends=by(end),
        gen_tp=generate(1, 2, 3),
        gen_pp=generate(0, 2, 3),
        micro_dp=own_group(
            rank, micro_dp_groups(degrees) if degrees.nests else [[r] for r in range(degrees.num_ranks)], clock
        ),
    )


def _training_place(rank: int, degrees: Degrees) -> dict[str, int]:
    tp, pp, dp = training_coordinates(rank, degrees)
    return {"tp": tp, "cp": context_coordinate(rank, degrees), "pp": pp, "dp": dp}


def own_group(rank: int, partition: list[list[int]], clock: CommClock) -> Group:
    """The group of ``partition`` that ``rank`` is in. All ranks must ask for the same partitions in the same order."""
    for ranks in partition:
        key = tuple(ranks)
        if len(key) > 1 and key not in _HANDLES:
            _HANDLES[key] = dist.new_group(list(key), timeout=timedelta(seconds=_TIMEOUT_S[0]))
    own = next(tuple(ranks) for ranks in partition if rank in ranks)
    return Group(own, own.index(rank), clock, _HANDLES.get(own))


class _CopyIn(torch.autograd.Function):
    """Into a tensor-parallel region: the same input on all ranks; their input gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.all_reduce(grad.contiguous().clone()), None


class _SumOut(torch.autograd.Function):
    """Out of a tensor-parallel region: partial sums add up; the gradient is the same for all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return group.all_reduce(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def copy_in(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Identity forward, sum over ``group`` backward."""
    return x if group.size == 1 else _CopyIn.apply(x, group)  # type: ignore[no-untyped-call]


def sum_out(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Sum over ``group`` forward, identity backward."""
    return x if group.size == 1 else _SumOut.apply(x, group)  # type: ignore[no-untyped-call]


class _GatherParts(torch.autograd.Function):
    """Every rank's part, in group order; each part's gradient is the sum of what all ranks made of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return torch.stack(group.all_gather(x))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.reduce_scatter(grad.contiguous())[0], None


def gather_parts(x: torch.Tensor, group: Group) -> torch.Tensor:
    """``[size, ...]`` of the ranks' ``x [...]``; sums gradients over ``group`` backward."""
    return x[None] if group.size == 1 else _GatherParts.apply(x, group)  # type: ignore[no-untyped-call]
