"""Matrix products of a layer on one rank: their sizes, and their time forward and backward.

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
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts


LAYERS_OF = {"qkv": 3, "gate_up": 2}
"""Linear layers that a target of adapters is, where an engine does not fuse them."""

ACTIVATION_BYTES = 2.0
"""Activations are bf16, unless ``Facts.activation_bytes`` says otherwise."""


def attention_gemms(shape: ModelShape, tp: Ints) -> list[tuple[Floats, Floats]]:
    """Sizes of the attention projections of one rank.

    Parameters
    ----------
    shape
        The model.
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    list[tuple[Floats, Floats]]
        ``(n, k)`` of each ``[rows, k] x [k, n]``, ``[C]`` each.
    """
    h, t = float(shape.hidden), np.asarray(tp, dtype=np.float64)
    if shape.mla is None:
        kv = _kv_width_per_rank(shape, tp)
        query = shape.q_width / t * (2 if shape.attention_gate else 1)
        return [(query + 2 * kv, h + 0 * t), (h + 0 * t, shape.q_width / t)]
    mla, heads = shape.mla, shape.num_heads / t
    down = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
    query_in = float(mla.q_lora_rank or shape.hidden)
    return [
        (down + 0 * t, h + 0 * t),
        (heads * mla.qk_head_dim, query_in + 0 * t),
        (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank + 0 * t),
        (h + 0 * t, heads * mla.v_head_dim),
    ]


def attention_products(shape: ModelShape, tp: Ints) -> list[tuple[list[tuple[Floats, Floats]], float]]:
    """Projections of each kind of attention layer, and its share of them all.

    Parameters
    ----------
    shape
        The model.
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    list[tuple[list[tuple[Floats, Floats]], float]]
        ``(n, k)`` of each product of a layer as ``attention_gemms`` has them, and the share of the layers; an indexer's
        queries and key, which every rank makes, are part of the first where attention is not latent.
    """
    if shape.mla is not None or (shape.full_heads is None and shape.sparse is None):
        return [(attention_gemms(shape, tp), 1.0)]
    h, t = float(shape.hidden), np.asarray(tp, dtype=np.float64)
    found = []
    for kind in shape.softmax_kinds:
        query = shape.num_heads * kind.head_dim / t
        keys = kind.head_dim * np.maximum(kind.num_kv_heads / t, 1.0) * (1 if kind.values_are_keys else 2)
        index = (shape.sparse.index_heads + 1) * shape.sparse.index_head_dim if kind.topk and shape.sparse else 0
        products = [(query * (2 if shape.attention_gate else 1) + keys + index, h + 0 * t), (h + 0 * t, query)]
        found.append((products, kind.layers / shape.num_attention_layers))
    return found


def linear_gemms(shape: ModelShape, tp: Ints) -> list[tuple[Floats, Floats]]:
    """Sizes of the projections of a linear mixer of one rank: in (all inputs and the gate), Kimi's gates, out.

    Parameters
    ----------
    shape
        The model.
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    list[tuple[Floats, Floats]]
        ``(n, k)`` of each ``[rows, k] x [k, n]``, ``[C]`` each; none where the model has no such layer.
    """
    if shape.linear is None:
        return []
    h, t = float(shape.hidden), np.asarray(tp, dtype=np.float64)
    linear, zero = shape.linear, 0 * t
    gates = [(2.0 * linear.gate_rank + zero, h + zero), (linear.gate_width / t, linear.gate_rank + zero)]
    inner = gates if linear.gate_rank else []  # both down, which every rank does whole, and both up
    return [(linear.in_width / t, h + zero), *inner, (h + zero, linear.value_width / t)]


def mlp_gemms(shape: ModelShape, width: Floats, hidden: int = 0) -> list[tuple[Floats, Floats]]:
    """Sizes of a (gated) MLP's projections of one rank.

    Parameters
    ----------
    shape
        The model.
    width
        Share of the feed-forward width on this rank, ``[C]``.
    hidden
        Width of what enters and leaves it; 0 for the model's.

    Returns
    -------
    list[tuple[Floats, Floats]]
        ``(n, k)`` of each ``[rows, k] x [k, n]``, ``[C]`` each.
    """
    h = (hidden or shape.hidden) + 0 * width
    return [((2 if shape.gated_mlp else 1) * width, h), (h, width)]


def latent_gemms(shape: ModelShape, like: Floats) -> list[tuple[Floats, Floats]]:
    """Sizes of the projections to the experts' width and back, which every rank holds whole.

    Parameters
    ----------
    shape
        The model.
    like
        Anything of the shape that the sizes are to have, ``[C]``.

    Returns
    -------
    list[tuple[Floats, Floats]]
        ``(n, k)`` of each ``[rows, k] x [k, n]``, ``[C]`` each; none where experts work in the hidden width.
    """
    if shape.moe is None or shape.moe.latent is None:
        return []
    hidden, latent = np.full_like(like, shape.hidden), np.full_like(like, shape.moe.latent)
    return [(latent, hidden), (hidden, latent)]


def mlp_width_per_token(shape: ModelShape) -> float:
    """Feed-forward width that one token goes through in an average layer.

    Parameters
    ----------
    shape
        The model.

    Returns
    -------
    float
        Elements; of a mixture of experts those that a token chooses and the shared ones.
    """
    if shape.moe is None:
        return shape.num_dense_layers * shape.ffn / shape.num_layers
    routed = shape.moe.experts_per_token * shape.moe.expert_ffn + shape.moe.shared_ffn
    return (shape.num_dense_layers * shape.ffn + shape.num_moe_layers * routed) / shape.num_layers


def run_gemms(
    facts: Facts, rows: Floats, gemms: list[tuple[Floats, Floats]], dtype: str, sustained: bool = False
) -> Priced:
    """Forward time of ``[rows, k] x [k, n]`` for each pair, summed.

    Parameters
    ----------
    facts
        What is known of job, device and engines.
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
    facts
        What is known of job, device and engines.
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
    facts
        What is known of job, device and engines.
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
    facts
        What is known of job, device and engines.
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
    facts
        What is known of job, device and engines.
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
    and memory-bound GEMMs are slower than that rate anyway and keep the table's time. On top, what the engine's own
    releases add (``gemm_ratio``).
    """
    spec = facts.device.spec
    sustained = Priced.of(2.0 * m * n * k / spec.sustained(dtype), spec.sustained_basis(dtype))
    return facts.training.scaled(longer(_kernel(facts, m, n, k, dtype), sustained), "gemm_ratio")


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
    n = np.stack([np.asarray(a, dtype=np.float64) for a, _ in gemms])
    k = np.stack([np.asarray(b, dtype=np.float64) for _, b in gemms])
    return n, k


def _kv_width_per_rank(shape: ModelShape, tp: Ints) -> Floats:
    """Key (or value) width of one rank; a KV head is replicated when there are fewer of them than ranks."""
    return shape.head_dim * np.maximum(shape.num_kv_heads / np.asarray(tp, dtype=np.float64), 1.0)
