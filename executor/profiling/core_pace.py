"""How fast this machine's cores are now: the same training steps on several of them, or on this process's own.

Where another machine of the same host has the other half of a core, they take 1.5 to 1.8 times as long, and so does a
run: for a fraction of a second or an hour, each core on its own. A call over the steps beside it takes the same to 5 %
whatever the core's speed (docs/log.md, 2026-11-26), so times are brought to the pace at which a profile was made. No
prediction is looked at. Products of small matrices would not do: they took the same to 1 % while runs
beside them took half as long again.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from executor.cores import stay_on_core
from executor.profiling.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from executor.profiling.cases import Key

PACE = "core_pace"
"""Table of a profile: the pace of its cores, to which its times of calls are brought."""
ONE_CORE: Key = {"cores": 1}
SAME = 0.25
"""A core whose paces differ by no more is as fast as before: a free one stays within 14 %, others take 50 to 80 %."""
FASTEST = 1.0 / 3.0
"""Share of looks that a free core is told by: a machine that hardly ever has one is measured as it is."""
LOOKS, BETWEEN_LOOKS_S = 9, 0.3
"""Of which the median is a profile's pace, so far apart that not all of them meet the same neighbour."""
SAMPLES, ROWS, WIDTH = 5, 64, 64
"""Training steps of a transformer of this width on so many rows, some 10 ms each."""


class CorePace:
    """A process on each of so many cores, idle but while :meth:`measure_s` asks it; a context manager."""

    def __init__(self, cores: int) -> None:
        self.cores = min(cores, os.cpu_count() or 1)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for core in range(self.cores):
            here, there = context.Pipe()
            process = context.Process(target=_compute, args=(there, core), daemon=True)
            process.start()
            there.close()  # the process has its own: where it ends, so does waiting for it
            self._ends.append(here)
            self._processes.append(process)
        self.measure_s()  # imports
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def measure_s(self, pools: Sequence[int] = ()) -> float:
        """Seconds of a step on the cores of pools of so many ranks, all computing at once; by default each a pool."""
        pools = pools or (1,) * self.cores
        ends = self._ends[: sum(pools)]
        for end in ends:
            end.send(SAMPLES)
        return of_pools_s([float(np.median(end.recv())) for end in ends], pools)


class OwnPace:
    """How fast this process's core is, asked between the things that it times."""

    def __init__(self) -> None:
        self._step = _training_step()
        self._paces_s: list[float] = []
        self._step()

    def measure_s(self) -> float:
        """Seconds of a step now: the median of several."""
        self._paces_s.append(float(np.median([self._step() for _ in range(SAMPLES)])))
        return self._paces_s[-1]

    def usual(self) -> Summary:
        """Seconds of a step in some seconds, and how far looks lie apart."""
        looks = []
        for _ in range(LOOKS):
            looks.append(self.measure_s())
            time.sleep(BETWEEN_LOOKS_S)
        return summarise(looks)

    def is_calm(self) -> bool:
        """Whether it is about as fast now as when it is free."""
        return self.measure_s() <= (1.0 + SAME) * free_pace_s(self._paces_s)


def of_pools_s(each_s: Sequence[float], pools: Sequence[int]) -> float:
    """The pace of pools of so many ranks, which take core after core: the mean over them.

    A pool is as fast as the slowest of its cores, since its ranks wait for each other.
    """
    first = itertools.accumulate(pools, initial=0)
    ranks = [range(*between) for between in itertools.pairwise(first)]
    return float(np.mean([max(each_s[rank % len(each_s)] for rank in of_pool) for of_pool in ranks]))


def free_pace_s(paces_s: Sequence[float]) -> float:
    """Of cores that are free, by all looks at them: the slowest of the fastest third, and at least the fastest one."""
    return float(np.quantile(paces_s, FASTEST, method="lower"))


def pace_of(profile: Path) -> float | None:
    """To which the times of a profile are brought, seconds of a step; ``None`` for one of GPUs."""
    import pyarrow.parquet as pq

    path = profile / f"{PACE}.parquet"
    rows = pq.read_table(path).to_pylist() if path.is_file() else []
    return float(rows[0]["latency_s"]) if rows else None


def _compute(end: Connection, core: int) -> None:
    stay_on_core(core)
    step = _training_step()
    while True:
        end.send([step() for _ in range(end.recv())])


def _training_step() -> Callable[[], float]:
    """A step of a small transformer on one core: many operators, as a rank has them; what they read is in caches.

    It has one thread whatever the process has, so that whoever looks sees the same of a core.
    """
    import torch

    layers = [torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True) for _ in range(2)]
    network, rows = torch.nn.Sequential(*layers), torch.zeros(ROWS, 7, WIDTH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0)

    def step() -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        start_s = time.perf_counter()
        network(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        took_s = time.perf_counter() - start_s
        torch.set_num_threads(threads)
        return took_s

    return step
