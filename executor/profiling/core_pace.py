"""How fast this machine's cores are now: the same training steps on all of them at once.

Where another process takes a core, or another machine on the same host the caches or memory, they take longer, and so
does a run. It says so without a look at any prediction. Products of small matrices would not do: they took the same to
1 % while runs beside them took half as long again.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from executor.cores import stay_on_core

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SAMPLES, ROWS, WIDTH = 40, 64, 64
"""Training steps of a transformer of this width on so many rows, some 10 ms each."""


class CorePace:
    """A process on each core that ``ranks`` take, idle but while :meth:`measure_s` asks it; a context manager."""

    def __init__(self, ranks: int) -> None:
        self._num = min(ranks, os.cpu_count() or 1)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for core in range(self._num):
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

    def measure_s(self) -> float:
        """Seconds of the computation on the slowest core, all computing at once: the median of several."""
        for end in self._ends:
            end.send(SAMPLES)
        return max(float(np.median(end.recv())) for end in self._ends)


def _compute(end: Connection, core: int) -> None:
    """Steps of a small transformer, as a rank computes them: many operators, and what they read is in shared caches."""
    import torch

    stay_on_core(core)
    torch.set_num_threads(1)
    layers = [torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True) for _ in range(2)]
    network, rows = torch.nn.Sequential(*layers), torch.zeros(ROWS, 7, WIDTH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0)
    while True:
        times = []
        for _ in range(end.recv()):
            start_s = time.perf_counter()
            network(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - start_s)
        end.send(times)
