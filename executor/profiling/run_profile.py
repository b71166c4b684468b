"""Measures a machine part by part into a journal; what the journal has already is not measured again."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from executor.profiling.core_pace import ONE_CORE, PACE, OwnPace
from executor.profiling.operator_parts import OPERATOR_PARTS
from executor.profiling.request import SHARES
from executor.profiling.run_parts import RUN_PARTS
from executor.profiling.statistics import while_calm
from executor.profiling.timing import measure, num_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from executor.profiling.cases import Case, Key
    from executor.profiling.journal import Journal
    from executor.profiling.request import Request
    from executor.profiling.statistics import Summary
    from executor.profiling.timing import Precision

    Report = Callable[[str, str], None]

MEASURES = OPERATOR_PARTS | RUN_PARTS
"""How each part of ``SHARES`` is measured."""


def measured_case(case: Case, device: torch.device, precision: Precision, is_calm: Callable[[], bool]) -> Summary:
    """Times of one operation on its device, while the core that it takes is calm."""
    copies = num_copies(device, case.operand_bytes)
    run = case.make(device, copies)
    return while_calm(lambda: measure(run, device, precision, copies), is_calm)


class Profiler:
    """One run of a profile. ``report(part, what)`` is called after each row."""

    def __init__(self, request: Request, journal: Journal, report: Report) -> None:
        self.request, self.journal, self.report = request, journal, report
        self.device = torch.device(request.device)
        self.part, self.deadline_s = "", 0.0
        self.cases: dict[object, Case] = {}

    def run(self) -> None:
        """Measure every part; each ends at its share of the time, or when its tables are good enough."""
        start_s, share = time.monotonic(), 0.0
        wanted = sum(SHARES[part] for part in self.request.parts)
        with self.threads_of_a_rank():
            for part in self.request.parts:
                share += SHARES[part] / wanted
                self.part, self.deadline_s = part, start_s + share * self.request.budget_s
                MEASURES[part](self)

    def is_calm(self) -> bool:
        """Whether this process's core is as fast as when it is free; a GPU is."""
        return self.device.type != "cpu" or self._core.is_calm()

    @cached_property
    def _core(self) -> OwnPace:
        return OwnPace()

    @cached_property
    def pace_s(self) -> float:
        """Of a CPU profile, to which times of calls are brought: seconds of a training step on one of its cores."""
        if not self.journal.has(PACE, ONE_CORE):
            self.journal.add(PACE, ONE_CORE, self._core.usual())
        return float(self.journal.result(PACE, ONE_CORE)["latency_s"])

    def slowness(self) -> float:
        """How many times as long this process's core takes now as the profile says; 1 for GPUs."""
        return self._core.measure_s() / self.pace_s if self.device.type == "cpu" else 1.0

    @contextmanager
    def threads_of_a_rank(self) -> Iterator[None]:
        """As many threads as a CPU rank has, in which all is measured."""
        threads = torch.get_num_threads()
        if self.device.type == "cpu":
            torch.set_num_threads(self.request.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def case(self, case: Case) -> float | None:
        """Seconds of a case, from the journal if it has them; ``None`` where it failed. Failures are rows too."""
        self.cases[case.name] = case
        if not self.journal.has(case.table, case.key):
            try:
                found = measured_case(case, self.device, self.request.precision, self.is_calm)
                self.journal.add(case.table, case.key, found)
            except (RuntimeError, NotImplementedError) as error:  # out of memory, or a kernel that does not exist
                self.failed(case.table, [case.key], error)
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
            self.report(self.part, f"{case.table} {', '.join(str(v) for v in case.key.values())}")
        row = self.journal.result(case.table, case.key)
        return None if row["error"] else float(row["latency_s"])

    def failed(self, table: str, keys: Sequence[Key], error: Exception) -> None:
        """A row of the reason for each key that has none; what was measured before stands."""
        for key in keys:
            if not self.journal.has(table, key):
                self.journal.add_failure(table, key, f"{type(error).__name__}: {error}".splitlines()[0])

    def left_s(self) -> float:
        """Seconds that the part which is measured has left."""
        return self.deadline_s - time.monotonic()

    def is_late(self) -> bool:
        """Whether there are none."""
        return self.left_s() < 0.0

    def has(self, ranks: int) -> bool:
        """Whether so many ranks have a device each; ranks of a CPU share its cores."""
        return self.device.type != "cuda" or torch.cuda.device_count() >= ranks
