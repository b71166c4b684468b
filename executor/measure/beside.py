"""Calls of a rank while another process of the host makes the same calls: what sharing a host costs.

The two know nothing of each other, as ranks of different pools do. Times alone are taken before and after those
together, so that a machine whose clock changes does not show as a neighbour.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.measure.engine_step import CALLS, CYCLES_TO_WARM, loaded_rank, one_cycle
from executor.measure.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event

    from executor.measure.cases import Key
    from executor.measure.engine_step import Probe

ROWS = "neighbour_step"
LOAD_TIMEOUT_S = 120.0


def measure_beside(probe: Probe, dtype: str, threads: int, cycles: int) -> Iterator[tuple[Key, Summary]]:
    """Yield each call's key and times, with 0 and with 1 ``neighbours``.

    Raises ``RuntimeError`` if the other process does not start.
    """
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        rank = loaded_rank(probe, str(path), dtype, torch.device("cpu"))
        numbers = itertools.count()  # of all cycles: responses must not look older than the weights
        alone = _times(rank, probe, numbers, cycles)
        with _neighbour(probe, str(path), dtype, threads):
            together = _times(rank, probe, numbers, 2 * cycles)
        after = _times(rank, probe, numbers, cycles)
    for call in CALLS:
        yield {**probe.key(dtype, call), "neighbours": 0}, summarise(alone[call] + after[call])
        yield {**probe.key(dtype, call), "neighbours": 1}, summarise(together[call])


def _times(rank: Any, probe: Probe, numbers: Iterator[int], cycles: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {call: [] for call in CALLS}
    for cycle in range(cycles + CYCLES_TO_WARM):
        for call, seconds in one_cycle(rank, probe, next(numbers)):
            if cycle >= CYCLES_TO_WARM:
                times[call].append(seconds)
    return times


@contextmanager
def _neighbour(probe: Probe, path: str, dtype: str, threads: int) -> Iterator[None]:
    """Another process that is at it from here to the end of the block."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    other = context.Process(target=_keep_busy, args=(probe, path, dtype, threads, ready, stop), daemon=True)
    other.start()
    try:
        if not ready.wait(LOAD_TIMEOUT_S):
            raise RuntimeError(f"a second process did not load its model within {LOAD_TIMEOUT_S:g} s")
        yield
    finally:
        stop.set()
        other.join(LOAD_TIMEOUT_S)
        other.kill()


def _keep_busy(probe: Probe, path: str, dtype: str, threads: int, ready: Event, stop: Event) -> None:
    import torch

    torch.set_num_threads(threads)
    rank, number = loaded_rank(probe, path, dtype, torch.device("cpu")), 0
    while not stop.is_set():
        for _ in one_cycle(rank, probe, number):
            pass
        number += 1
        if number == CYCLES_TO_WARM:
            ready.set()
