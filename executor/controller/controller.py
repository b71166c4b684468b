"""The single controller: starts the pools of a plan, hands out calls, waits, and notices every failure.

It holds references only. Values that it makes itself (prompts) are put into the object store once, and metrics are
the only thing it reads back.
"""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from executor.batch import row_tokens, to_wire
from executor.controller.deadlines import Deadlines
from executor.controller.worker_group import WorkerGroup
from executor.errors import RankFailedError, error_of, lost_rank, silent_rank
from executor.records import CallRecord, CallRequest, waited_on
from executor.worker.futures import Future, Part, Source
from executor.worker.worker import CallFailedError
from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from tensordict import TensorDict

    from executor.controller.pools import ResourcePool
    from executor.errors import Failure
    from executor.faults import Fault
    from executor.launch.launcher import Launcher
    from simulator.plan.groups import Degrees

GRACE_S = 1.0
"""After the first failure, how long to wait for others: the rank that explains it may report a moment later."""


class Controller:
    """Owns the launcher's processes; leaving the ``with`` block ends them, whatever happened.

    ``deadlines`` say how long a call may take before its ranks count as hung; ``faults`` are injected into
    the calls of ranks. While ``watches_kernels``, calls say which kernels ran. With ``dealt_steps`` rows go to
    data-parallel ranks by their tokens, evenly in each of so many optimizer steps; else in their order.
    """

    def __init__(self, launcher: Launcher, deadlines: Deadlines | None = None, faults: tuple[Fault, ...] = ()) -> None:
        self.launcher, self.faults = launcher, faults
        self._deadlines = deadlines or Deadlines()
        self.watches_kernels = False
        self.dealt_steps = 0
        self.records: list[CallRecord] = []
        self.transport_note: str | None = None
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
        """Start every pool's processes; ``transport_note`` is what to tell the user of how columns travel."""
        for pool in pools:
            with _losses("start", pool.name):
                self._ranks[pool.name] = ranks = self.launcher.start_pool(pool)
            if self.faults:
                self._tell(pool.name, ranks, "inject_faults", [(self.faults,)] * len(ranks))
        with _losses("connect", "all"):
            self.transport_note = self.launcher.connect([rank for pool in pools for rank in self._ranks[pool.name]])

    def add_group(
        self,
        role: str,
        pool: str,
        worker_class: type,
        degrees: Degrees,
        options: dict[str, Any],
        scoring: Degrees | None = None,
    ) -> WorkerGroup:
        """Make a role's workers on a pool's processes. All ranks of the pool meet at one address per role."""
        ranks = self._ranks[pool]
        given = {"address": self.meeting_place(pool), "degrees": degrees, **options}
        self._tell(pool, ranks, "add_role", [(role, worker_class, given)] * len(ranks))
        return WorkerGroup(self, role, pool, worker_class, degrees, scoring)

    def meeting_place(self, pool: str) -> str:
        """A free address on the first rank of a pool."""
        address: str = self._tell(pool, self._ranks[pool][:1], "address", [()])[0]
        return address

    def _tell(self, pool: str, ranks: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a set-up method on ranks; one that is lost meanwhile is a failed rank."""
        with _losses(method, pool, lambda: self.launcher.lost_among(ranks)):
            return self.launcher.tell(ranks, method, arguments)

    def next_number(self) -> int:
        """The next position in call order."""
        return next(self._numbers)

    def count_on_from(self, number: int) -> None:
        """Number the next call ``number``: a run that resumes numbers its calls on."""
        self._numbers = itertools.count(number)

    def dispatch(
        self,
        group: WorkerGroup,
        number: int,
        key: str,
        method: str,
        inputs: dict[int, Any],
        sources: set[int],
        options: dict[str, Any],
    ) -> dict[int, Future]:
        """Hand one call to the ranks in ``inputs``; returns a future per rank without waiting."""
        requests = [
            CallRequest(number, key, group.role, method, argument, options, rank in sources, self.watches_kernels)
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
        rows = int(batch.batch_size[0])
        now_s = time.time()
        record = CallRecord(-1, "put", "put", "controller", "controller", 0, now_s, now_s, 0, 0, 0, 0, rows)
        record = replace(record, row_tokens=row_tokens(None, batch))
        source = Source(self.launcher.put(wire), self.launcher.put(record))
        return Future((Part((source,), frozenset(wire)),), self.fetch)

    def fetch(self, sources: Sequence[Source]) -> list[Any]:
        """Wait for sources and read them; raises the cause if any rank failed meanwhile."""
        self._wait_for({done for source in sources if (done := waited_on(source.record)) in self._outstanding})
        with _losses("fetch", "controller"):
            return [self.launcher.get(source.data) for source in sources]

    def wait_all(self) -> None:
        """Wait until every call made so far is through on every rank."""
        self._wait_for(set(self._outstanding))

    def _wait_for(self, wanted: set[Any]) -> None:
        while wanted:
            # the oldest call runs: it waits for earlier calls only, and those are through
            number, call, _, _ = next(iter(self._outstanding.values()))
            left_s = self._deadlines.left_s(number, call)
            # all that is outstanding, not only what is wanted: a failure elsewhere may be why this never comes
            done = self.launcher.ready(list(self._outstanding), max(left_s, 0.0))
            if not done and left_s <= 0:
                silent = self._silent(f"which is late after {self._deadlines.limit_s(call):,.0f} s")
                raise error_of([self._located(failure) for failure in silent if failure.number == number])
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
        silent = self._silent("while others of its call lost their connection to it or waited in vain")
        raise error_of([self._located(f) for f in failures], [self._located(f) for f in silent])

    def _silent(self, why: str) -> list[Failure]:
        """What to say of the ranks that have not answered yet."""
        return [silent_rank(*place, why) for place in self._outstanding.values()]

    def _located(self, failure: Failure) -> Failure:
        """With the node of the rank."""
        return replace(failure, node=self.launcher.node_of(self._ranks[failure.pool][failure.rank]))

    def _failures_among(self, done: Sequence[Any]) -> list[Failure]:
        """Note the records of calls that are through; return what failed."""
        failures = []
        for reference in done:
            place = self._outstanding.pop(reference)
            try:
                found = self.launcher.records(reference)
                self.records += found
                self._deadlines.note(place[0], place[1], found)
            except CallFailedError as error:
                failures.append(error.failure)
            except Exception as error:
                failures.append(lost_rank(*place).because(error))
        return failures


@contextmanager
def _losses(call: str, pool: str, rank: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Outside of calls, an error that is neither ours nor a rank's own means that a process or its data is lost."""
    try:
        yield
    except (HybridmapError, CallFailedError):
        raise
    except Exception as error:
        raise RankFailedError(lost_rank(-1, call, pool, rank()).because(error)) from error
