"""1F1B and interleaved 1F1B as passes that wait for each other, and when a step of them ends."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats, Ints


BACKWARD = 2.0
"""Time of a backward pass in forward passes."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """The passes of a pipeline's step, by when they may run at the earliest.

    Parameters
    ----------
    earlier
        For each pass the one before it on its stage and the one whose output it needs, shape ``[passes, 2]``; the
        last row of a table of ends stands for none.
    micro
        Micro-batch of each pass.
    work
        Time of each pass for a micro-batch whose forward and backward pass through a stage take 1.
    waves
        Passes that wait for none of each other, in order.
    last
        The last pass of every stage.
    """

    earlier: Ints
    micro: Ints
    work: Floats
    waves: tuple[Ints, ...]
    last: Ints


def played(schedule: Schedule, times: Floats) -> Floats:
    """When a step ends.

    Parameters
    ----------
    schedule
        The passes of a step.
    times
        What each micro-batch takes on a stage, forward and backward, ``[n, steps]``.

    Returns
    -------
    Floats
        End of each of the steps, in the unit of ``times``, ``[steps]``.
    """
    ends = np.zeros((len(schedule.micro) + 1, times.shape[1]))
    takes = schedule.work[:, None] * times[schedule.micro]
    for wave in schedule.waves:
        ends[wave] = ends[schedule.earlier[wave]].max(axis=1) + takes[wave]
    return np.asarray(ends[schedule.last].max(axis=0), dtype=np.float64)


@functools.lru_cache(maxsize=1024)
def schedule(num_stages: int, num_micro: int, num_chunks: int = 1) -> Schedule:
    """1F1B, interleaved where stages have several chunks of layers.

    Parameters
    ----------
    num_stages, num_micro, num_chunks
        Stages, micro-batches of a step, chunks of a stage.

    Returns
    -------
    Schedule
        Its passes.
    """
    orders = [_stage_order(num_stages, num_micro, num_chunks, stage) for stage in range(num_stages)]
    of: dict[tuple[int, ...], int] = {}
    for stage, order in enumerate(orders):
        of |= {(stage, *each): len(of) + i for i, each in enumerate(order)}
    none = len(of)
    earlier = np.full((none, 2), none, dtype=np.int64)
    for stage, order in enumerate(orders):
        for i, each in enumerate(order):
            before = of[stage, *order[i - 1]] if i else none
            earlier[of[stage, *each]] = before, of.get(_needed(num_stages, num_chunks, stage, *each), none)
    passes = list(of)
    level = _levels(earlier)
    by_level = np.argsort(level, kind="stable")
    waves = np.split(by_level, np.flatnonzero(np.diff(level[by_level])) + 1)
    share = (BACKWARD / (1.0 + BACKWARD) / num_chunks, 1.0 / (1.0 + BACKWARD) / num_chunks)
    return Schedule(
        earlier,
        np.asarray([micro for _, _, _, micro in passes], dtype=np.int64),
        np.asarray([share[forward] for _, forward, _, _ in passes]),
        tuple(np.asarray(wave, dtype=np.int64) for wave in waves),
        np.asarray([of[stage, *order[-1]] for stage, order in enumerate(orders)], dtype=np.int64),
    )


def _stage_order(num_stages: int, num_micro: int, num_chunks: int, stage: int) -> list[tuple[bool, int, int]]:
    """``(forward, chunk, micro-batch)`` of one stage in the order in which it runs them.

    Micro-batches go through a stage's chunks in groups of as many as there are stages. Before its first backward pass
    a stage runs so many forward passes that the last stage has its first backward pass as early as it can.
    """
    forward, backward = [], []
    for first in range(0, num_micro, num_stages):
        group = range(first, min(first + num_stages, num_micro))
        forward += [(True, chunk, micro) for chunk in range(num_chunks) for micro in group]
        backward += [(False, chunk, micro) for chunk in reversed(range(num_chunks)) for micro in group]
    left = num_stages - stage - 1
    ahead = left if num_chunks == 1 else 2 * left + (num_chunks - 1) * min(num_stages, num_micro)
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for late, early in zip(forward[ahead:], backward, strict=False):
        order += [late, early]
    return order + backward[len(forward) - ahead :]


def _needed(num_stages: int, num_chunks: int, stage: int, forward: bool, chunk: int, micro: int) -> tuple[int, ...]:
    """The pass whose output a pass needs: of the layers before, or behind; of the last layers' backward its forward."""
    place = chunk * num_stages + stage
    if forward:
        at = place - 1
    elif place == num_stages * num_chunks - 1:
        return (stage, True, chunk, micro)
    else:
        at = place + 1
    return (at % num_stages, forward, at // num_stages, micro) if at >= 0 else ()


def _levels(earlier: Ints) -> Ints:
    """Length of the longest chain of passes before each one."""
    none = len(earlier)
    level = np.full(none + 1, -1, dtype=np.int64)
    waiting = np.arange(none)
    while len(waiting):
        before = earlier[waiting]
        ready = ((before == none) | (level[before] >= 0)).all(axis=1)
        assert ready.any(), "the order of a stage cannot be run"
        level[waiting[ready]] = level[before[ready]].max(axis=1) + 1
        waiting = waiting[~ready]
    return level[:-1]
