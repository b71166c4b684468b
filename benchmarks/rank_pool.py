"""A few gloo processes on this machine that run a function together: for benchmarks and tests of collectives."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMPORTED_ONCE = (
    "torch.distributed.fsdp",
    "tensordict",
    "executor.engines.native.engine",
    "executor.engines.fsdp.engine",
    "executor.engines.megatron.model",
)
"""What most ranks need, where it is installed: imported by the process that ranks are forked from, and not by each of
them anew."""


def run_on_ranks(num: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``function(rank, *arguments)`` on ``num`` processes that can talk; what each returned, in rank order.

    A rank that fails ends all of them, and its traceback is raised.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:  # files, since a pipe that nobody reads yet holds little
        mp.get_context("forkserver").set_forkserver_preload(list(IMPORTED_ONCE))
        given = (num, port, folder, function, arguments)
        mp.start_processes(_rank, args=given, nprocs=num, join=True, start_method="forkserver")  # type: ignore[no-untyped-call]
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(num)]


def _rank(rank: int, num: int, port: int, folder: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries, once a rank
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(function(rank, *arguments)))
    dist.barrier()  # only after success: a rank that fails must end at once, for all to be ended
    dist.destroy_process_group()
