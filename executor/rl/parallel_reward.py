"""A reward function in processes of its own, some responses at once; they end with the process that asks them."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARTS_A_WORKER = 4
"""Parts of a batch for each worker: some responses take longer to judge than others."""
SET_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux's prctl."""


class ParallelReward:
    """Asks ``workers`` processes, each of which finds the function by ``name`` with ``resolve``."""

    def __init__(self, name: str, resolve: Callable[[str], Callable[[str, str], float]], workers: int) -> None:
        resolve(name)  # what cannot be found is said here
        self.name, self.workers, self._resolve = name, workers, resolve
        fresh = multiprocessing.get_context("spawn")  # a copy of a process with threads and a GPU is not to be trusted
        self._pool = ProcessPoolExecutor(workers, mp_context=fresh, initializer=_end_with_parent)

    def many(self, responses: Sequence[str], answers: Sequence[str]) -> list[float]:
        """The rewards of a batch, in its order; what the function raises is raised here."""
        size = max(1, -(-len(responses) // (self.workers * PARTS_A_WORKER)))
        starts = range(0, len(responses), size)
        parts = [(responses[i : i + size], answers[i : i + size]) for i in starts]
        futures = [self._pool.submit(_scored, self._resolve, self.name, *part) for part in parts]
        return [score for future in futures for score in future.result()]


def _scored(
    resolve: Callable[[str], Callable[[str, str], float]], name: str, responses: Sequence[str], answers: Sequence[str]
) -> list[float]:
    score = _found(resolve, name)
    return [float(score(r, a)) for r, a in zip(responses, answers, strict=True)]


@lru_cache(maxsize=1)
def _found(resolve: Callable[[str], Callable[[str, str], float]], name: str) -> Callable[[str, str], float]:
    return resolve(name)


def _end_with_parent() -> None:
    """A rank that is killed cleans nothing up, and a worker would wait for it for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
