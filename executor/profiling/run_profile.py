"""Measures a machine part by part into a journal; what the journal has already is not measured again."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from executor.profiling import attention, memory_ops
from executor.profiling.collectives import GLOO_KINDS, KINDS, measure_collectives
from executor.profiling.core_pace import ONE_CORE, PACE, OwnPace
from executor.profiling.gemm import gemm_case
from executor.profiling.probes import host_contention_probes, parallel_probes, probes_for
from executor.profiling.request import SHARES
from executor.profiling.statistics import while_calm
from executor.profiling.timing import measure, num_copies
from profiles.errors import HybridmapError
from profiles.models.gemm_shapes import powers_of_two
from profiles.tables.sampling import AdaptiveGrid
from profiles.tables.write import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from executor.profiling.cases import Case, Key
    from executor.profiling.journal import Journal
    from executor.profiling.request import Request
    from executor.profiling.statistics import Summary
    from executor.profiling.timing import Precision
    from profiles.records import Floats

    Report = Callable[[str, str], None]

LAUNCH_S = 2e-6
ELEMENT_SIZES = {True: powers_of_two(1 << 10, 1 << 26), False: powers_of_two(1 << 10, 1 << 30)}
MOST_COLLECTIVE_BYTES = {"cpu": 4**12, "cuda": 4**14}
"""So many that their time is bytes, and not what a call costs."""


LEAST_PROBES, LEAST_GPU_PROBES = 18, 3


def collective_bytes(device: str, quick: bool) -> list[int]:
    """Sizes of collectives in the order they are measured: first the ends, between which all else is interpolated."""
    largest = MOST_COLLECTIVE_BYTES[device]
    between = [4**i for i in range(2, 15, 2 if quick else 1) if 16 < 4**i < largest]
    return [largest, 16, *reversed(between)]


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
        self._part = ""
        self.cases: dict[object, Case] = {}

    def run(self) -> None:
        """Measure every part; each ends at its share of the time, or when its tables are good enough."""
        start_s, share = time.monotonic(), 0.0
        wanted = sum(SHARES[part] for part in self.request.parts)
        with self.threads_of_a_rank():
            for part in self.request.parts:
                share += SHARES[part] / wanted
                self._part, self._deadline_s = part, start_s + share * self.request.budget_s
                getattr(self, f"_{part}")()

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

    def _case(self, case: Case) -> float | None:
        """Seconds of a case, from the journal if it has them; ``None`` where it failed. Failures are rows too."""
        self.cases[case.name] = case
        if not self.journal.has(case.table, case.key):
            try:
                found = measured_case(case, self.device, self.request.precision, self.is_calm)
                self.journal.add(case.table, case.key, found)
            except (RuntimeError, NotImplementedError) as error:  # out of memory, or a kernel that does not exist
                self.journal.add_failure(case.table, case.key, f"{type(error).__name__}: {str(error).splitlines()[0]}")
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
            self.report(self._part, f"{case.table} {', '.join(str(v) for v in case.key.values())}")
        row = self.journal.result(case.table, case.key)
        return None if row["error"] else float(row["latency_s"])

    def _late(self) -> bool:
        return time.monotonic() > self._deadline_s

    def _memory(self) -> None:
        sizes, few = ELEMENT_SIZES[self.request.quick], (1 << 14, 1 << 18, 1 << 22, 1 << 25)
        for num_bytes in sizes:
            self._case(memory_ops.element_wise_case(self.request.dtype, num_bytes))
        for name in ("norm", "embedding", "cross_entropy", "adamw"):
            for num_bytes in few:
                if not self._late():
                    self._case(memory_ops.MEMORY_OPS[name](self.request.dtype, num_bytes))

    def _copy(self) -> None:
        for kind in memory_ops.COPY_KINDS:
            for num_bytes in (4**i for i in range(6, 13 if self.request.quick else 15)):
                if kind == "host_to_device" or not self._late():  # the one that prices look up
                    self._case(memory_ops.copy_case(kind, num_bytes))

    def _gemm(self) -> None:
        dtype, (m, n, k) = self.request.dtype, self.request.gemm_axes()
        rate = self._gemm_rate(dtype)
        mesh = np.meshgrid(*(np.asarray(axis, dtype=np.float64) for axis in (m, n, k)), indexing="ij")
        work, operands = 2.0 * mesh[0] * mesh[1] * mesh[2], 4.0 * (mesh[0] * mesh[2] + mesh[1] * mesh[2])
        allowed = (work / rate <= self.request.most_case_s) & (operands <= self.request.most_operand_bytes)

        def floor(rows: Floats, cols: Floats, inner: Floats) -> Floats:
            return 2.0 * rows * cols * inner / rate + LAUNCH_S

        grid = AdaptiveGrid([np.asarray(x) for x in (m, n, k)], floor, allowed, (0, 2, 1))
        self._fill(grid, lambda i: gemm_case(dtype, m[i[0]], n[i[1]], k[i[2]]))

    def _gemm_rate(self, dtype: str) -> float:
        """FLOP/s of one large product: what says which others are too long."""
        size = 1024 if self.device.type == "cpu" else 8192
        seconds = self._case(gemm_case(dtype, size, size, size))
        return 2.0 * size**3 / seconds if seconds else 1e9

    def _attention(self) -> None:
        heads, dtype = self.request.heads(), self.request.dtype
        start_s, whole_s = time.monotonic(), self._deadline_s - time.monotonic()
        rate = self._gemm_rate(dtype) / 4  # a guess, to leave out what takes too long
        for i, (dim, q, kv) in enumerate(heads):
            self._deadline_s = start_s + whole_s * (i + 0.45) / len(heads)
            self._attention_grid("prefill", dim, q, kv, rate)
            self._deadline_s = start_s + whole_s * (i + 0.9) / len(heads)
            self._attention_grid("decode", dim, q, kv, rate)
            self._deadline_s = start_s + whole_s * (i + 1.0) / len(heads)
            self._attention_training(dim, q, kv, rate)

    def _attention_grid(self, phase: str, dim: int, q: int, kv: int, rate: float) -> None:
        dtype, gpu = self.request.dtype, self.device.type == "cuda"
        batch = np.asarray(powers_of_two(1, 512 if gpu else 256)[:: 1 if not self.request.quick else 2])
        length = np.asarray(powers_of_two(4, 16384 if gpu else 2048))
        b, s = np.meshgrid(batch.astype(np.float64), length.astype(np.float64), indexing="ij")
        square = s if phase == "prefill" else np.ones_like(s)
        work, held = 4.0 * b * s * square * q * dim, 4.0 * b * s * q * dim * 4.0
        allowed = (work / rate <= self.request.most_case_s) & (held <= self.request.most_operand_bytes)

        def floor(rows: Floats, tokens: Floats) -> Floats:
            return 4.0 * rows * tokens * (tokens if phase == "prefill" else 1.0) * q * dim / rate + 5 * LAUNCH_S

        make = attention.prefill_case if phase == "prefill" else attention.decode_case
        grid = AdaptiveGrid([batch, length], floor, allowed, (0, 1))
        self._fill(grid, lambda i: make(dtype, dim, q, kv, int(batch[i[0]]), int(length[i[1]])))

    def _attention_training(self, dim: int, q: int, kv: int, rate: float) -> None:
        sizes = [(64, 8), (16, 32), (8, 128), (2, 512), (4, 1024), (2, 2048)]
        for batch, seq in sizes:
            if 12.0 * batch * seq * seq * q * dim / rate > self.request.most_case_s:
                continue
            for direction, mask in (
                ("forward", "causal"),
                ("forward", "masked"),
                ("both", "masked"),
                ("both", "causal"),
            ):
                if not self._late() or seq <= 32:
                    self._case(attention.training_case(self.request.dtype, direction, mask, dim, q, kv, batch, seq))

    def _fill(self, grid: AdaptiveGrid, make: Callable[[tuple[int, ...]], Case]) -> None:
        """Measure where it promises most until the expected error is within the target or time is over.

        The first, coarse box is measured in any case: without it there would be no table at all.
        """
        first = True
        while True:
            for index in grid.wanted():
                if self._late() and not first:
                    return
                grid.observe(index, self._case(make(index)))
            first = False
            if grid.num_measured and grid.expected_error() <= self.request.target:
                return
            if not grid.refine():
                return

    def _collective(self) -> None:
        kinds = KINDS if self.device.type == "cuda" else GLOO_KINDS
        for group in self.request.groups:
            keys: list[Key] = [
                {"dtype": self.request.dtype, "kind": kind, "gpus": group, "num_bytes": num_bytes}
                for num_bytes in collective_bytes(self.device.type, self.request.quick)
                for kind in kinds
            ]
            missing: Sequence[Key] = [key for key in keys if not self.journal.has("collective", key)]
            if not missing or (self._late() and group != self.request.groups[0]):
                continue
            found = measure_collectives(missing, group, self.device.type, self.request.precision, self.request.threads)
            for key, result in found:
                if isinstance(result, str):
                    self.journal.add_failure("collective", key, result)
                else:
                    self.journal.add("collective", key, result)
                self.report(self._part, f"{key['kind']} of {key['num_bytes']:,} bytes over {group} ranks")
                if self._late() and all(self.journal.has("collective", k) for k in keys[: 2 * len(kinds)]):
                    break  # each kind has the largest and the smallest size

    def _dispatch(self) -> None:
        from executor.profiling.dispatch import ROWS, dispatch_keys, measure_dispatch

        samples, iterations = (32, 256), 10 if self.request.quick else 30
        shared = self.request.has_neighbours
        for key in dispatch_keys(self.request.launchers, samples, cores_are_shared=shared):
            known = all(self.journal.has(ROWS, {**key, "part": part}) for part in PARTS)
            if known or not self._has(int(key["ranks"])) or (self._late() and key["ranks"] != 1):
                continue  # one rank of each launcher in any case: 0 s between calls is no price
            try:
                found, memory = measure_dispatch(key, iterations)
                for part, summary in found.items():
                    self.journal.add(ROWS, {**key, "part": part}, summary, memory_bytes=memory)
            except (ImportError, HybridmapError) as error:
                for part in PARTS:
                    self.journal.add_failure(ROWS, {**key, "part": part}, str(error))
            self.report(self._part, f"an empty iteration, {', '.join(f'{n} {v}' for n, v in key.items())}")

    def _has(self, ranks: int) -> bool:
        """Whether so many ranks have a device each; ranks of a CPU share its cores."""
        return self.device.type != "cuda" or torch.cuda.device_count() >= ranks

    def _parallel(self) -> None:
        """Two ranks at once, on GPUs where there are two; of ranks that share cores ``_host_contention`` says it."""
        from executor.profiling.parallel_step import CALLS, measure_parallel

        if "ray" not in self.request.launchers or self.request.has_neighbours or not self._has(2):
            return
        for i, probe in enumerate(parallel_probes(self.request)):
            keys = [{**probe.key(self.request.dtype, call), "ranks": 2} for call in CALLS]
            if all(self.journal.has("parallel_step", key) for key in keys) or (i and self._late()):
                continue
            try:
                for key, found in measure_parallel(probe, self.request.dtype, 2, 20):
                    self.journal.add("parallel_step", key, found)
            except (RuntimeError, ImportError, HybridmapError) as error:
                for key in keys:
                    self.journal.add_failure("parallel_step", key, f"{type(error).__name__}: {error}".splitlines()[0])
            self.report(self._part, f"{probe.samples} samples on two ranks")

    def _host_contention(self) -> None:
        """A rank with one of another pool on its host; GPUs share nothing that calls would wait for."""
        from executor.profiling.host_contention import ROWS, calls_with, measure_host_contention, neighbours_of

        if not self.request.has_neighbours:
            return
        for i, probe in enumerate(host_contention_probes(self.request)):
            numbers, crowded = neighbours_of(crowded=self.request.is_crowded), self.request.is_crowded
            keys = [{**probe.key(self.request.dtype, call), "neighbours": n} for n in numbers for call in calls_with(n)]
            if all(self.journal.has(ROWS, key) for key in keys) or (i and self._late()):
                continue
            try:
                for table, key, found in measure_host_contention(
                    probe, self.request.dtype, 20, self.pace_s, crowded=crowded
                ):
                    self.journal.add(table, key, found)
            except (RuntimeError, ImportError, HybridmapError) as error:
                for key in keys:
                    if not self.journal.has(ROWS, key):
                        self.journal.add_failure(ROWS, key, f"{type(error).__name__}: {error}".splitlines()[0])
            self.report(self._part, f"calls of {probe.samples} samples with another rank on the host")

    def _engine(self) -> None:
        from executor.profiling.engine_step import CALLS, measure_probe

        for i, probe in enumerate(probes_for(self.request)):
            keys = [probe.key(self.request.dtype, call) for call in CALLS]
            least = LEAST_PROBES if self.device.type == "cpu" else LEAST_GPU_PROBES
            late = self._late() and i >= least  # fewer would not tell the constants apart
            if late or all(self.journal.has("engine_step", key) for key in keys):
                continue
            try:
                for key, found in measure_probe(
                    probe, self.request.dtype, self.device, self.request.precision, self.slowness
                ):
                    self.journal.add("engine_step", key, found)
            except (RuntimeError, ImportError, HybridmapError) as error:
                for key in keys:
                    if not self.journal.has("engine_step", key):
                        self.journal.add_failure("engine_step", key, f"{type(error).__name__}: {error}".splitlines()[0])
            self.report(self._part, f"calls of {probe.samples} samples, {probe.config['num_hidden_layers']} layers")
