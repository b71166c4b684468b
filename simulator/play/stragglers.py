"""Who waits for several calls waits for the slowest, which takes longer than each of them does on average.

Two calls of 46 ms that each vary by a tenth end 49 ms after both began: the expected maximum of two normal times lies
0.56 of their deviation above the mean (Clark, "The greatest of a finite set of random variables", 1961). Clark's
formulas take two numbers at a time and neglect what sums share; here an iteration is drawn many times instead. GPUs
repeat a call to a percent or two; on cores that a host shares it is a tenth.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simulator.play.event_queue import waits_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats
    from simulator.play.event_queue import Task

DRAWS = 1000
"""Iterations: the expected end is known to a fortieth of a call's deviation. Always the same ones."""


def with_stragglers(tasks: Sequence[Task], spreads: Sequence[float]) -> list[Task]:
    """The tasks; of those that another waits for together, the last one longer by what is waited beyond its mean end.

    Parameters
    ----------
    tasks
        In call order, of mean durations.
    spreads
        Standard deviation of each task's duration, relative; tasks vary by themselves.

    Returns
    -------
    list[Task]
        In the same order. What waits for several starts, and the iteration ends, when it does on average.
    """
    if not any(spreads):
        return list(tasks)
    waited = [list(waits_for(tasks, i)) for i in range(len(tasks))]
    factors = np.exp(np.asarray(spreads)[:, None] * _normal(len(tasks)))
    factors /= factors.mean(axis=1, keepdims=True)  # a duration is the mean of its draws
    ends_s = np.zeros((len(tasks), DRAWS))
    for i, task in enumerate(tasks):
        ends_s[i] = ends_s[waited[i]].max(axis=0, initial=0.0) + task.duration_s * factors[i]
    mean_s, longer_s = ends_s.mean(axis=1), [0.0] * len(tasks)
    for inputs in (*filter(None, waited), list(range(len(tasks)))):
        last = max(inputs, key=lambda i: mean_s[i])
        longer_s[last] = max(longer_s[last], float(ends_s[inputs].max(axis=0).mean() - mean_s[last]))
    return [replace(task, duration_s=task.duration_s + s) for task, s in zip(tasks, longer_s, strict=True)]


@lru_cache(maxsize=8)
def _normal(num: int) -> Floats:
    """Standard normal numbers, ``[num, DRAWS]``; nobody writes to them."""
    return np.random.default_rng(0).standard_normal((num, DRAWS))
