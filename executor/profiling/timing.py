"""Times one operation until its median is known well enough: CUDA graphs and events on GPUs, a clock on CPUs.

What is timed rotates over several copies of its operands, more than twice the last-level cache where memory allows, so
that no call finds its inputs in cache because the one before it left them there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from executor.profiling.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Callable

    Runner = Callable[[int], object]

MIN_SAMPLE_S = 200e-6
"""A sample holds so many calls that the clock's own noise does not count."""
MAX_COPIES = 16
CPU_CACHE_BYTES = 4 << 20
"""Per rank. A process finds what it used a moment ago in the second-level cache, and that is what a run does too."""
WARMUP_SAMPLES = 2


@dataclass(frozen=True)
class Precision:
    """When to stop: the confidence interval is within ``half_width`` of the median, or time or repeats are over.

    ``min_s``: samples that follow at once share the same disturbance, so a narrow interval needs some time too.
    """

    half_width: float = 0.03
    min_repeats: int = 7
    max_repeats: int = 60
    min_s: float = 0.03
    max_s: float = 1.5


def num_copies(device: torch.device, operand_bytes: float) -> int:
    """How many copies of the operands to rotate over."""
    if device.type == "cuda":
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        free = torch.cuda.mem_get_info(device)[0]
        fits = max(1, int(free * 0.5 / max(operand_bytes, 1.0)))
    else:
        cache, fits = CPU_CACHE_BYTES, max(1, int((2 << 30) / max(operand_bytes, 1.0)))
    return max(1, min(MAX_COPIES, fits, 1 + int(2 * cache / max(operand_bytes, 1.0))))


def measure(run: Runner, device: torch.device, precision: Precision, copies: int = 1) -> Summary:
    """Seconds of ``run(i)``, where ``i`` says which copy of the operands to use."""
    sampler = _cuda_sampler(run, device, copies) if device.type == "cuda" else _cpu_sampler(run, copies)
    for _ in range(WARMUP_SAMPLES):
        sampler()
    start_s, start_cpu_s, times = time.perf_counter(), time.process_time(), [sampler()]
    while len(times) < precision.max_repeats:
        times.append(sampler())
        spent_s = time.perf_counter() - start_s
        known = len(times) >= precision.min_repeats and summarise(times).half_width <= precision.half_width
        if (known and spent_s >= precision.min_s) or spent_s > precision.max_s:
            break
    if device.type == "cuda":  # the host waits for it
        return summarise(times)
    share = (time.process_time() - start_cpu_s) / (time.perf_counter() - start_s)
    return replace(summarise(times), cpu_share=share)


def _cpu_sampler(run: Runner, copies: int) -> Callable[[], float]:
    for i in range(copies):
        run(i)
    start_s = time.perf_counter()
    run(0)
    calls = max(1, int(MIN_SAMPLE_S / max(time.perf_counter() - start_s, 1e-7)))

    def sample() -> float:
        started_s = time.perf_counter()
        for i in range(calls):
            run(i % copies)
        return (time.perf_counter() - started_s) / calls

    return sample


def _cuda_sampler(run: Runner, device: torch.device, copies: int) -> Callable[[], float]:
    """A captured graph of several calls between two events; calls that cannot be captured are launched one by one."""
    for i in range(copies):
        run(i)
    torch.cuda.synchronize(device)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run(0)
    stop.record()
    torch.cuda.synchronize(device)
    calls = max(copies, min(200, int(MIN_SAMPLE_S / max(start.elapsed_time(stop) * 1e-3, 1e-7))))
    replay = _captured(run, copies, calls)

    def sample() -> float:
        start.record()
        if replay is not None:
            replay()
        else:
            for i in range(calls):
                run(i % copies)
        stop.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(stop)) * 1e-3 / calls

    return sample


def _captured(run: Runner, copies: int, calls: int) -> Callable[[], None] | None:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for i in range(calls):
                run(i % copies)
    except RuntimeError:  # some operation needs the host; it is timed as it is launched
        torch.cuda.synchronize()
        return None
    return graph.replay
