"""The event queue: calls wait for their inputs and for their turn on their pool.

Order is total: events are (time, priority, number). Roles that share a pool take turns in call order (first in,
first out, no overtaking), as a single controller issues them; calls of different pools overlap as soon as their
inputs exist. So the end of an iteration is a longest path and never grows when one call gets shorter.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Priority(IntEnum):
    """At equal times a call ends before another starts."""

    END = 0
    START = 1


@dataclass(frozen=True)
class Task:
    """A call with its duration, the resource it occupies, and the positions of the tasks it waits for.

    ``also`` is a second resource that it occupies, as a transfer between two pools does.
    """

    name: str
    resource: str
    duration_s: float
    inputs: tuple[int, ...]
    also: str | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        return (self.resource,) if self.also is None else (self.resource, self.also)


@dataclass(frozen=True)
class Scheduled:
    """When a task ran, and which task it last waited for (``None`` if it started at zero)."""

    start_s: float
    end_s: float
    waited_for: int | None


def run_events(tasks: Sequence[Task]) -> tuple[Scheduled, ...]:
    """Play tasks through the queue.

    Parameters
    ----------
    tasks
        In call order; inputs point backwards.

    Returns
    -------
    tuple[Scheduled, ...]
        One record each, in the same order.
    """
    waited = [waits_for(tasks, i) for i in range(len(tasks))]
    open_inputs = [len(inputs) for inputs in waited]
    followers: list[list[int]] = [[] for _ in tasks]
    for i, inputs in enumerate(waited):
        for j in inputs:
            followers[j].append(i)
    done: list[Scheduled | None] = [None] * len(tasks)
    last: list[int | None] = [None] * len(tasks)
    starts: list[float] = [0.0] * len(tasks)
    queue = [(0.0, Priority.START, i) for i, n in enumerate(open_inputs) if n == 0]
    heapq.heapify(queue)
    while queue:
        now, priority, i = heapq.heappop(queue)
        if priority is Priority.START:
            starts[i] = now
            heapq.heappush(queue, (now + tasks[i].duration_s, Priority.END, i))
            continue
        done[i] = Scheduled(starts[i], now, last[i])
        for j in followers[i]:
            open_inputs[j] -= 1
            last[j] = i
            if open_inputs[j] == 0:
                heapq.heappush(queue, (now, Priority.START, j))
    assert all(record is not None for record in done), "inputs must point backwards, so every task ends"
    return tuple(record for record in done if record is not None)


def waits_for(tasks: Sequence[Task], i: int) -> tuple[int, ...]:
    """What a task waits for.

    Parameters
    ----------
    tasks
        In call order.
    i
        Position of the task.

    Returns
    -------
    tuple[int, ...]
        Positions of its inputs, and of the task before it on each of its resources.
    """
    before: list[int] = []
    for resource in tasks[i].resources:
        before += [j for j in range(i) if resource in tasks[j].resources][-1:]
    return tuple(dict.fromkeys((*tasks[i].inputs, *before)))


def critical_path(records: Sequence[Scheduled]) -> tuple[int, ...]:
    """Positions of the tasks that hold the end of the iteration, first to last; their durations add up to it.

    Parameters
    ----------
    records
        Of an iteration, in call order.

    Returns
    -------
    tuple[int, ...]
        Positions, first to last.
    """
    at: int | None = max(range(len(records)), key=lambda i: (records[i].end_s, i))
    path = []
    while at is not None:
        path.append(at)
        at = records[at].waited_for
    return tuple(reversed(path))
