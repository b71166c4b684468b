"""Relays: between the controller and the ranks of a large pool, so that its cost does not grow by a message a rank.

A relay passes a call on to its ranks and answers twice: at once with references to what the ranks will have made, and
when all are through with their records. References inside the first answer belong to the relay, which lives as long as
the pool.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from executor.errors import first_cause, lost_rank
from executor.records import CallRequest, Item, Submitted
from executor.worker.worker import CallFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.errors import Failure
    from executor.records import CallRecord

GRACE_S = 0.5
"""After a first failure, how long to wait for one that explains it."""


@dataclass(frozen=True)
class Head:
    """What is the same for all ranks of a call; the rest is an argument and whether to return, per rank."""

    number: int
    key: str
    role: str
    method: str
    options: dict[str, Any]

    def request(self, argument: Any, returns: bool) -> CallRequest:
        """The request of one rank."""
        return CallRequest(self.number, self.key, self.role, self.method, argument, self.options, returns)


class Relay:
    """Runs as an asynchronous actor: calls of the controller may arrive in any order, and wait for their turn."""

    def __init__(self, pool: str, ranks: Sequence[tuple[int, Any]]) -> None:
        self._pool, self._ranks = pool, list(ranks)
        self._turn = 0
        self._sent: dict[int, list[tuple[Failure, Any]]] = {}
        self._order = asyncio.Condition()

    async def dispatch(self, turn: int, head: Head, asked: Sequence[tuple[int, Any, bool]]) -> list[Any]:
        """Hand a call to ranks, given as ``(place, argument, returns)``; references to what they return."""
        async with self._order:
            await self._order.wait_for(lambda: self._turn == turn)
            outputs, sent = [], []
            for place, argument, returns in asked:
                number, rank = self._ranks[place]
                data, record = rank.call.options(num_returns=2).remote(head.request(argument, returns))
                outputs.append(data if returns else None)  # a reference less to keep count of, in both processes
                sent.append((lost_rank(head.number, f"{head.role}.{head.method}", self._pool, number), record))
            self._sent[turn] = sent
            self._turn += 1
            self._order.notify_all()
        return outputs

    async def records(self, turn: int) -> list[CallRecord]:
        """Records of a call once all ranks are through; the failure that explains the others as soon as it is known."""
        async with self._order:
            await self._order.wait_for(lambda: turn in self._sent)
            sent = self._sent.pop(turn)
        tasks = [asyncio.ensure_future(_awaited(record)) for _, record in sent]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(task.exception() for task in done) and pending:
            await asyncio.wait(pending, timeout=GRACE_S)
        failures = [_failure(lost, task) for (lost, _), task in zip(sent, tasks, strict=True) if _has_failed(task)]
        if failures:
            pairs = zip(sent, tasks, strict=True)
            silent = [replace(lost, summary="it did not answer") for (lost, _), task in pairs if not task.done()]
            raise CallFailedError(first_cause(failures, silent))
        return [task.result() for task in tasks]


async def _awaited(reference: Any) -> CallRecord:
    record: CallRecord = await reference
    return record


def _has_failed(task: asyncio.Task[CallRecord]) -> bool:
    return task.done() and task.exception() is not None


def _failure(lost: Failure, task: asyncio.Task[CallRecord]) -> Failure:
    """What the rank reported; or, if it ended without a word, that it is lost."""
    error = task.exception()
    cause = getattr(error, "cause", error)
    return cause.failure if isinstance(cause, CallFailedError) else lost.because(error)


@dataclass(eq=False)
class RelayLine:
    """The controller's end of a relay; counts its turns."""

    actor: Any
    turn: int = 0

    def submit(self, head: Head, asked: list[tuple[int, Any, bool]]) -> list[Submitted]:
        """Pass a call on to ranks, given as ``dispatch`` takes them."""
        outputs = self.actor.dispatch.remote(self.turn, head, asked)
        done = self.actor.records.remote(self.turn)
        self.turn += 1
        return [Submitted(Item(outputs, i), Item(done, i), done) for i in range(len(asked))]
