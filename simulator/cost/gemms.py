"""Time of matrix products of a layer on one rank, forward and backward; ``gemm_sizes`` has which there are.

Symbols: ``h`` hidden, ``q``, ``kv`` attention widths, ``f`` feed-forward width, ``t`` tensor parallel. All arrays
broadcast to ``[C]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Priced, longer, where
from profiles.units import DTYPE_BYTES
from simulator.cost.formats import is_quantized

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.facts import Facts


LAYERS_OF = {"qkv": 3, "gate_up": 2}
"""Linear layers that a target of adapters is, where an engine does not fuse them."""

ACTIVATION_BYTES = 2.0
"""Activations are bf16, unless ``Facts.activation_bytes`` says otherwise."""


def run_gemms(
    facts: Facts, rows: Floats, gemms: list[tuple[Floats, Floats]], dtype: str, sustained: bool = False
) -> Priced:
    """Forward time of ``[rows, k] x [k, n]`` for each pair, summed.

    Parameters
    ----------
    rows
        Tokens, ``[C]``.
    gemms
        ``(n, k)`` of each product.
    dtype
        Number format of the GEMMs.
    sustained
        As in ``Batch``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.

    Notes
    -----
    Source: measured GEMM tables; left-out points are 2 to 4 % off on the median (docs/accuracy.md).
    """
    n, k = _stack(gemms)
    if sustained:
        return _sustained_gemm(facts, rows + 0 * n, n, k, dtype).sum(axis=0)
    return facts.device.gemm(rows, n, k, dtype).sum(axis=0)


def held_gemms(facts: Facts, rows: Floats, gemms: list[tuple[Floats, Floats]], dtype: str) -> Priced:
    """Products of an engine that computes for minutes without a pause: none is faster than the power limit lets it.

    Parameters
    ----------
    rows
        Tokens, ``[C]``.
    gemms
        ``(n, k)`` of each product.
    dtype
        Number format of the GEMMs.

    Returns
    -------
    Priced
        Seconds, ``[C]``.

    Notes
    -----
    Source: the engine's GEMM tables and the device's sustained rate. Published offline throughput of Llama-3.3-70B in
    FP8 on H200 is 3 % off on the mean with it and 11 % without, nothing fitted.
    """
    n, k = _stack(gemms)
    spec = facts.device.spec
    held = Priced.of(2.0 * rows * n * k / spec.sustained(dtype), spec.sustained_basis(dtype))
    return longer(facts.device.gemm(rows, n, k, dtype), held).sum(axis=0)


def run_gemms_backward(
    facts: Facts, rows: Floats, gemms: list[tuple[Floats, Floats]], dtype: str = "bf16"
) -> tuple[Priced, Priced]:
    """Input gradients ``[rows, n] x [n, k]`` and weight gradients ``[n, rows] x [rows, k]``, at the sustained rate.

    Parameters
    ----------
    rows
        Tokens, ``[C]``.
    gemms
        ``(n, k)`` of each forward product.
    dtype
        Number format of the GEMMs.

    Returns
    -------
    tuple[Priced, Priced]
        Seconds of both, each summed over the products, ``[C]``.

    Notes
    -----
    The forward tables at the transposed sizes: no table holds backward kernels.
    """
    n, k = _stack(gemms)
    inputs = _sustained_gemm(facts, rows + 0 * n, k, n, dtype).sum(axis=0)
    weights = _sustained_gemm(facts, n, k, rows + 0 * n, dtype).sum(axis=0)
    return inputs, weights


def linear_training(
    facts: Facts,
    rows: Floats,
    gemms: list[tuple[Floats, Floats]],
    parts: tuple[str, ...],
    dtype: str,
    sustained: bool,
    grouped: bool = False,
) -> tuple[Priced, Priced, Priced]:
    """Trained linear layers, with what their implementation adds.

    Activations and their gradients are quantised first: they are read in bf16 and written twice (once transposed), in
    NVFP4 after one more read, for the scale of the whole tensor. Weights are quantised once a step
    (``data_parallel.quantisation_time``). LoRA has no weight gradient of the base, and adapters (``adapter_passes``).

    Parameters
    ----------
    rows
        Tokens, ``[C]``.
    gemms
        ``(n, k)`` of each product.
    parts
        What each product is, in the words of ``Implementation.lora_targets``; another word never has adapters.
    dtype
        Number format of the GEMMs.
    sustained
        As in ``Batch``.
    grouped
        One of many experts whose kernels are launched together, so that launches are not its own.

    Returns
    -------
    tuple[Priced, Priced, Priced]
        Seconds forward, of the input gradients and of the weight gradients, ``[C]`` each.

    Notes
    -----
    Bytes of quantisation and adapters are counted from the operations; nothing was measured on them.
    """
    kernels = 0 if grouped else len(gemms)
    forward = run_gemms(facts, rows, gemms, dtype, sustained)
    inputs, weights = run_gemms_backward(facts, rows, gemms, dtype)
    n, k = _stack(gemms)
    if is_quantized(dtype):
        per_operand = ACTIVATION_BYTES * (2 if dtype == "nvfp4" else 1) + 2.0 * DTYPE_BYTES[dtype]
        forward = forward + facts.device.memory_bound((rows * k).sum(axis=0) * per_operand, kernels)
        inputs = inputs + facts.device.memory_bound((rows * n).sum(axis=0) * per_operand, kernels)
    if facts.implementation.lora_rank:
        there, back = adapter_passes(facts, rows, gemms, parts, launches=0 if grouped else 1)
        forward, inputs, weights = forward + there, inputs + back, Priced.zero(weights.shape)
    return forward, inputs, weights


def adapter_passes(
    facts: Facts, rows: Floats, gemms: list[tuple[Floats, Floats]], parts: tuple[str, ...], launches: int
) -> tuple[Priced, Priced]:
    """Adapters of rank far below the width, which are memory traffic.

    Forward: read the input, write the adapter's output, read it with the base's and write their sum, ``k + 4 n``
    elements. Backward: read the output's gradient for both factors and the input for one, write the input's gradient
    and add it to the base's, ``5 k + 2 n``. Layers that an engine does not fuse read their common input each.

    Parameters
    ----------
    rows
        Tokens, ``[C]``.
    gemms
        ``(n, k)`` of each product.
    parts
        What each product is.
    launches
        Whether kernels are launched for each of them: 1, or 0 for one of many experts.

    Returns
    -------
    tuple[Priced, Priced]
        Seconds forward and backward, ``[C]`` each.

    Notes
    -----
    Bytes are counted; products of so low a rank reach a part of the memory bandwidth only, and some frameworks run them
    for several adapters apart, which ``adapter_ratio`` of the engine states.
    """
    there = back = num = 0.0 * np.asarray(rows, dtype=np.float64)
    for (n, k), part in zip(gemms, parts, strict=True):
        if part in facts.implementation.lora_targets:
            layers = 1 if facts.training.fused_projections else LAYERS_OF.get(part, 1)
            there, back = there + rows * (layers * k + 4 * n), back + rows * (5 * layers * k + 2 * n)
            num = num + layers * launches
    passes = (
        facts.device.memory_bound(elements * ACTIVATION_BYTES, kernels * num)
        for elements, kernels in ((there, 3), (back, 6))
    )
    forward, backward = (facts.training.scaled(each, "adapter_ratio") for each in passes)
    return forward, backward


def _sustained_gemm(facts: Facts, m: Floats, n: Floats, k: Floats, dtype: str) -> Priced:
    """The table's time, or the time at the device's sustained rate where that is longer.

    The tables were measured in short runs on a cool device; long dense work is held back by the power limit. Small
    and memory-bound GEMMs are slower than that rate anyway and keep the table's time.
    """
    spec = facts.device.spec
    sustained = Priced.of(2.0 * m * n * k / spec.sustained(dtype), spec.sustained_basis(dtype))
    return longer(_kernel(facts, m, n, k, dtype), sustained)


def _kernel(facts: Facts, m: Floats, n: Floats, k: Floats, dtype: str) -> Priced:
    """The table's time; of quantised operands that of the fastest kernel that could stand in its place.

    The tables' FP8 linear layers quantise their input with kernels of an inference engine, up to 70 us where the
    product takes 20. A trainer's quantisation is priced by itself, so the product is never slower than with wider
    operands. Block scales cost no less than one of the tensor; where the tensor cores apply them, no more.
    """
    found = facts.device.gemm(m, n, k, dtype)
    if not is_quantized(dtype):
        return found
    scaled_in_hardware = "nvfp4" in facts.device.spec.peak_flop_per_s
    for other in ("fp8", "fp8_block", "bf16"):
        usable = scaled_in_hardware or (dtype, other) != ("fp8_block", "fp8")
        if usable and other != dtype and facts.device.has_gemm(other):
            price = facts.device.gemm(m, n, k, other)
            found = where(price.s < found.s, price, found)
    return found


def _stack(gemms: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.array([a for a, _ in gemms], dtype=np.float64), np.array([b for _, b in gemms], dtype=np.float64)
