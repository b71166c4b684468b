"""Collectives between processes of this host: gloo between CPU ranks, NCCL between GPUs.

Each rank is a process of its own, as in a run. The calls are those of the torch-native engine (lists of tensors), so
its copies are in the times. ``num_bytes`` is the whole, gathered tensor; for ``all_to_all`` what one rank holds.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from executor.cores import stay_on_core
from executor.profiling.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from executor.profiling.cases import Key
    from executor.profiling.timing import Precision

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GLOO_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MIN_SAMPLE_S = 1e-3
START_TIMEOUT_S = 120.0


def measure_collectives(
    keys: Sequence[Key], group: int, device: str, precision: Precision, threads: int
) -> Iterator[tuple[Key, Summary | str]]:
    """Yield each key (``kind``, ``num_bytes``, ``gpus``, ``dtype``) with its times or the reason why there are none.

    Starts ``group`` processes and ends them, also when the caller stops listening.
    """
    context = mp.get_context("spawn")
    results, sender = context.Pipe(duplex=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    ranks = [
        context.Process(
            target=_rank, args=(rank, group, address, device, list(keys), precision, threads, sender), daemon=True
        )
        for rank in range(group)
    ]
    for process in ranks:
        process.start()
    sender.close()
    try:
        yield from _received(keys, results)
    finally:
        for process in ranks:
            process.terminate()
            process.join()


def _received(keys: Sequence[Key], results: Any) -> Iterator[tuple[Key, Summary | str]]:
    for i, key in enumerate(keys):
        try:
            if i == 0 and not results.poll(START_TIMEOUT_S):
                raise EOFError("the ranks did not meet in time")
            yield key, results.recv()
        except EOFError as error:
            for left in keys[i:]:
                yield left, f"the ranks ended: {error or 'no reason given'}"
            return


def _rank(
    rank: int, group: int, address: str, device: str, keys: list[Key], precision: Precision, threads: int, sender: Any
) -> None:
    parent = os.getppid()
    torch.set_num_threads(threads)
    at = torch.device(f"cuda:{rank}") if device == "cuda" else torch.device("cpu")
    if at.type == "cuda":
        torch.cuda.set_device(at)
    else:
        stay_on_core(rank)
    backend = "nccl" if at.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=address, rank=rank, world_size=group, timeout=timedelta(seconds=START_TIMEOUT_S)
    )
    for key in keys:
        if os.getppid() != parent:  # whoever wanted the numbers is gone
            return
        try:
            operation = _operation(key, group, at)
            found: Summary | str
            found = _measured(operation, at, precision)
        except RuntimeError as error:
            found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if rank == 0:
            sender.send(found)
    dist.destroy_process_group()


def _measured(run: Callable[[], object], device: torch.device, precision: Precision) -> Summary:
    """Samples of as many calls as fill a millisecond; the first rank says when there are enough."""
    for _ in range(3):
        run()
    calls = _agreed(max(1.0, MIN_SAMPLE_S / max(_timed(run, 1, device), 1e-7)), device)
    times, start_s = [], time.perf_counter()
    while True:
        dist.barrier()
        times.append(_timed(run, calls, device) / calls)
        found = summarise(times)
        known = len(times) >= precision.min_repeats and found.half_width <= precision.half_width
        over = len(times) >= precision.max_repeats or time.perf_counter() - start_s > precision.max_s
        if _agreed(float(known or over), device):
            return found


def _timed(run: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    for _ in range(calls):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s


def _agreed(value: float, device: torch.device) -> int:
    """The first rank's whole number, on all."""
    told = torch.tensor([int(value)], device=device)
    dist.broadcast(told, src=0)
    return int(told.item())


def _operation(key: Key, group: int, device: torch.device) -> Callable[[], object]:
    elements = max(group, int(key["num_bytes"]) // 4 // group * group)
    whole = torch.zeros(elements, device=device)
    part = torch.zeros(elements // group, device=device)
    parts = [torch.zeros_like(part) for _ in range(group)]
    others = [torch.zeros_like(part) for _ in range(group)]
    if key["kind"] == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if key["kind"] == "all_gather":
        return lambda: dist.all_gather(parts, part)
    if key["kind"] == "reduce_scatter":
        return lambda: dist.reduce_scatter(part, list(whole.chunk(group)))
    return lambda: dist.all_to_all(parts, others)
