"""Parts of a profile that time one operation after another in this process: memory, copies, products, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from executor.profiling import attention, memory_ops
from executor.profiling.gemm import gemm_case
from profiles.models.gemm_shapes import powers_of_two
from profiles.tables.sampling import AdaptiveGrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.profiling.cases import Case
    from executor.profiling.run_profile import Profiler
    from profiles.records import Floats

LAUNCH_S = 2e-6
ELEMENT_SIZES = {True: powers_of_two(1 << 10, 1 << 26), False: powers_of_two(1 << 10, 1 << 30)}


def memory_part(profiler: Profiler) -> None:
    """Element-wise kernels, and norms, embeddings, losses and optimizer steps while there is time."""
    sizes, few = ELEMENT_SIZES[profiler.request.quick], (1 << 14, 1 << 18, 1 << 22, 1 << 25)
    for num_bytes in sizes:
        profiler.case(memory_ops.element_wise_case(profiler.request.dtype, num_bytes))
    for name in ("norm", "embedding", "cross_entropy", "adamw"):
        for num_bytes in few:
            if not profiler.is_late():
                profiler.case(memory_ops.MEMORY_OPS[name](profiler.request.dtype, num_bytes))


def copy_part(profiler: Profiler) -> None:
    """Copies between device and host; only those that prices look up where time is over."""
    for kind in memory_ops.COPY_KINDS:
        for num_bytes in (4**i for i in range(6, 13 if profiler.request.quick else 15)):
            if kind == "host_to_device" or not profiler.is_late():  # the one that prices look up
                profiler.case(memory_ops.copy_case(kind, num_bytes))


def gemm_part(profiler: Profiler) -> None:
    """Products of the sizes that the models have, where interpolation promises to gain most."""
    dtype, (m, n, k) = profiler.request.dtype, profiler.request.gemm_axes()
    rate = _gemm_rate(profiler, dtype)
    mesh = np.meshgrid(*(np.asarray(axis, dtype=np.float64) for axis in (m, n, k)), indexing="ij")
    work, operands = 2.0 * mesh[0] * mesh[1] * mesh[2], 4.0 * (mesh[0] * mesh[2] + mesh[1] * mesh[2])
    allowed = (work / rate <= profiler.request.most_case_s) & (operands <= profiler.request.most_operand_bytes)

    def floor(rows: Floats, cols: Floats, inner: Floats) -> Floats:
        return 2.0 * rows * cols * inner / rate + LAUNCH_S

    grid = AdaptiveGrid([np.asarray(x) for x in (m, n, k)], floor, allowed, (0, 2, 1))
    _fill(profiler, grid, lambda i: gemm_case(dtype, m[i[0]], n[i[1]], k[i[2]]))


def _gemm_rate(profiler: Profiler, dtype: str) -> float:
    """FLOP/s of one large product: what says which others are too long."""
    size = 1024 if profiler.device.type == "cpu" else 8192
    seconds = profiler.case(gemm_case(dtype, size, size, size))
    return 2.0 * size**3 / seconds if seconds else 1e9


def attention_part(profiler: Profiler) -> None:
    """Prompts, decode steps and training, for each head shape of the models."""
    heads, dtype = profiler.request.heads(), profiler.request.dtype
    whole_s = profiler.left_s()
    start_s = profiler.deadline_s - whole_s
    rate = _gemm_rate(profiler, dtype) / 4  # a guess, to leave out what takes too long
    for i, (dim, q, kv) in enumerate(heads):
        profiler.deadline_s = start_s + whole_s * (i + 0.45) / len(heads)
        _attention_grid(profiler, "prefill", dim, q, kv, rate)
        profiler.deadline_s = start_s + whole_s * (i + 0.9) / len(heads)
        _attention_grid(profiler, "decode", dim, q, kv, rate)
        profiler.deadline_s = start_s + whole_s * (i + 1.0) / len(heads)
        _attention_training(profiler, dim, q, kv, rate)


def _attention_grid(profiler: Profiler, phase: str, dim: int, q: int, kv: int, rate: float) -> None:
    dtype, gpu = profiler.request.dtype, profiler.device.type == "cuda"
    batch = np.asarray(powers_of_two(1, 512 if gpu else 256)[:: 1 if not profiler.request.quick else 2])
    length = np.asarray(powers_of_two(4, 16384 if gpu else 2048))
    b, s = np.meshgrid(batch.astype(np.float64), length.astype(np.float64), indexing="ij")
    square = s if phase == "prefill" else np.ones_like(s)
    work, held = 4.0 * b * s * square * q * dim, 4.0 * b * s * q * dim * 4.0
    allowed = (work / rate <= profiler.request.most_case_s) & (held <= profiler.request.most_operand_bytes)

    def floor(rows: Floats, tokens: Floats) -> Floats:
        return 4.0 * rows * tokens * (tokens if phase == "prefill" else 1.0) * q * dim / rate + 5 * LAUNCH_S

    make = attention.prefill_case if phase == "prefill" else attention.decode_case
    grid = AdaptiveGrid([batch, length], floor, allowed, (0, 1))
    _fill(profiler, grid, lambda i: make(dtype, dim, q, kv, int(batch[i[0]]), int(length[i[1]])))


def _attention_training(profiler: Profiler, dim: int, q: int, kv: int, rate: float) -> None:
    sizes = [(64, 8), (16, 32), (8, 128), (2, 512), (4, 1024), (2, 2048)]
    for batch, seq in sizes:
        if 12.0 * batch * seq * seq * q * dim / rate > profiler.request.most_case_s:
            continue
        for direction, mask in (
            ("forward", "causal"),
            ("forward", "masked"),
            ("both", "masked"),
            ("both", "causal"),
        ):
            if not profiler.is_late() or seq <= 32:
                profiler.case(attention.training_case(profiler.request.dtype, direction, mask, dim, q, kv, batch, seq))


def _fill(profiler: Profiler, grid: AdaptiveGrid, make: Callable[[tuple[int, ...]], Case]) -> None:
    """Measure where it promises most until the expected error is within the target or time is over.

    The first, coarse box is measured in any case: without it there would be no table at all.
    """
    first = True
    while True:
        for index in grid.wanted():
            if profiler.is_late() and not first:
                return
            grid.observe(index, profiler.case(make(index)))
        first = False
        if grid.num_measured and grid.expected_error() <= profiler.request.target:
            return
        if not grid.refine():
            return


OPERATOR_PARTS = {"memory": memory_part, "copy": copy_part, "gemm": gemm_part, "attention": attention_part}
