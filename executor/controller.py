"""The single controller: starts the pools of a plan, hands out calls, waits, and notices every failure.

It holds references only. Values that it makes itself (prompts) are put into the object store once, and metrics are
the only thing it reads back.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Self

from executor.batch import num_bytes, to_wire
from executor.errors import error_of, lost_rank
from executor.futures import Future, Part, Source
from executor.records import CallRecord, CallRequest, waited_on
from executor.worker import CallFailedError
from executor.worker_group import WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tensordict import TensorDict

    from executor.errors import Failure
    from executor.launch import Launcher
    from executor.pools import ResourcePool
    from simulator.groups import Degrees

GRACE_S = 1.0
"""After the first failure, how long to wait for others: the rank that explains it may report a moment later."""


class Controller:
    """Owns the launcher's processes; leaving the ``with`` block ends them, whatever happened."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.bytes_put = 0
        self.bytes_read = 0
        self.records: list[CallRecord] = []
        self._ranks: dict[str, list[Any]] = {}
        self._numbers = itertools.count()
        self._outstanding: dict[Any, tuple[int, str, str, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.launcher.stop()

    def start(self, pools: Sequence[ResourcePool]) -> None:
        """Start every pool's processes."""
        for pool in pools:
            self._ranks[pool.name] = self.launcher.start_pool(pool)

    def add_group(
        self, role: str, pool: str, worker_class: type, degrees: Degrees, options: dict[str, Any],
        scoring: Degrees | None = None,
    ) -> WorkerGroup:  # fmt: skip
        """Make a role's workers on a pool's processes. All ranks of the pool meet at one address per role."""
        ranks = self._ranks[pool]
        given = {"address": self.meeting_place(pool), "degrees": degrees, **options}
        self.launcher.tell(ranks, "add_role", [(role, worker_class, given)] * len(ranks))
        return WorkerGroup(self, role, pool, worker_class, degrees, scoring)

    def meeting_place(self, pool: str) -> str:
        """A free address on the first rank of a pool."""
        address: str = self.launcher.tell(self._ranks[pool][:1], "address", [()])[0]
        return address

    def next_number(self) -> int:
        """The next position in call order."""
        return next(self._numbers)

    def count_on_from(self, number: int) -> None:
        """Number the next call ``number``: a run that goes on numbers its calls on."""
        self._numbers = itertools.count(number)

    def dispatch(
        self, group: WorkerGroup, number: int, key: str, method: str, inputs: dict[int, Any], sources: set[int],
        options: dict[str, Any],
    ) -> dict[int, Future]:  # fmt: skip
        """Hand one call to the ranks in ``inputs``; returns a future per rank without waiting."""
        requests = [
            CallRequest(number, key, group.role, method, argument, options, rank in sources)
            for rank, argument in inputs.items()
        ]
        futures, pool = {}, self._ranks[group.pool]
        made = self.launcher.submit([pool[rank] for rank in inputs], requests)
        for rank, submitted in zip(inputs, made, strict=True):
            # of ranks that are through together, the first one stands for all
            self._outstanding.setdefault(submitted.done, (number, f"{group.role}.{method}", group.pool, rank))
            futures[rank] = Future((Part((Source(submitted.data, submitted.record),)),), self.fetch)
        return futures

    def put(self, batch: TensorDict) -> Future:
        """A batch of the controller's own (prompts) as a future."""
        wire = to_wire(batch)
        self.bytes_put += num_bytes(wire)
        rows = int(batch.batch_size[0])
        now_s = time.time()
        record = CallRecord(-1, "put", "put", "controller", "controller", 0, now_s, now_s, 0, 0, 0, 0, 0, rows)
        source = Source(self.launcher.put(wire), self.launcher.put(record))
        return Future((Part((source,), frozenset(wire)),), self.fetch)

    def fetch(self, sources: Sequence[Source]) -> list[Any]:
        """Wait for sources and read them; raises the cause if any rank failed meanwhile."""
        self._wait_for({done for source in sources if (done := waited_on(source.record)) in self._outstanding})
        values = [self.launcher.get(source.data) for source in sources]
        self.bytes_read += sum(num_bytes(value) for value in values)
        return values

    def wait_all(self) -> None:
        """Wait until every call made so far is through on every rank."""
        self._wait_for(set(self._outstanding))

    def _wait_for(self, wanted: set[Any]) -> None:
        while wanted:
            # all that is outstanding, not only what is wanted: a failure elsewhere may be why this never comes
            done = self.launcher.ready(list(self._outstanding), None)
            self._take(done)
            wanted.difference_update(done)

    def _take(self, done: Sequence[Any]) -> None:
        failures = self._failures_among(done)
        if not failures:
            return
        deadline_s = time.monotonic() + GRACE_S
        while self._outstanding and time.monotonic() < deadline_s:
            more = self.launcher.ready(list(self._outstanding), max(deadline_s - time.monotonic(), 0.0))
            failures += self._failures_among(more)
        raise error_of(failures)

    def _failures_among(self, done: Sequence[Any]) -> list[Failure]:
        """Note the records of calls that are through; return what failed."""
        failures = []
        for reference in done:
            place = self._outstanding.pop(reference)
            try:
                self.records += self.launcher.records(reference)
            except CallFailedError as error:
                failures.append(error.failure)
            except Exception as error:
                failures.append(lost_rank(*place).because(error))
        return failures
