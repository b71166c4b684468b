"""One layer of an inference engine on one rank but for its attention, and its vocabulary head: GPU work, no host time.

``rows`` are the tokens that a step computes in the whole engine (one pipeline group of them), shape ``[C, S]``;
decode tokens and prompt tokens alike go through the projections and the feed-forward together. Inside the ``tp``
GPUs of a stage attention runs as ``attention_dp`` copies and experts lie in ``ep`` groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Ints, Priced
from simulator.cost import moe
from simulator.cost.engine_attention import attention_ranks, sparse_modules
from simulator.cost.formats import QUANTIZED_ACTIVATIONS, expert_kernels, formats_of
from simulator.cost.gemm_sizes import attention_products, latent_gemms, linear_gemms, mlp_gemms, mlp_width_per_token
from simulator.cost.gemms import ACTIVATION_BYTES, held_gemms, run_gemms

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from simulator.cost.formats import Formats
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

SAMPLING_BYTES_PER_LOGIT = 16.0
SAMPLING_KERNELS = 12
"""About four passes over fp32 logits in a dozen kernels: temperature, softmax, top-p, draw."""

LINEAR_KERNELS = 4
"""Small kernels of a linear mixer: split of the projection, norms of queries and keys, rates of decay, gated norm."""


def layer_work(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, rows: Floats, precision: str, sustained: bool = False
) -> Priced:
    """Projections, feed-forward and small kernels of one average layer.

    Parameters
    ----------
    rows
        Tokens of a step in the whole engine, ``[C, S]``.
    sustained
        The engine computes for minutes without a pause, so that the power limit holds its GEMMs to the device's
        sustained rate; where requests come and go, decode leaves most of the power unused.

    Returns
    -------
    Priced
        Seconds, the shape of ``rows``.

    Notes
    -----
    Source: measured GEMM and MoE tables of one GPU; small kernels are their bytes at 0.8 of the bandwidth plus a launch
    each.
    """
    copy = copy_work(facts, shape, layouts, rows / layouts.attention_dp[:, None], precision, sustained)
    return copy if shape.moe is None else copy + expert_work(facts, shape, layouts, rows, precision)


def copy_work(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, own: Floats, precision: str, sustained: bool = False
) -> Priced:
    """The part of ``layer_work`` that each attention copy does for itself, by the tokens of one copy.

    Parameters
    ----------
    facts, shape, layouts
        As ``layer_work``.
    own
        Tokens of a step in one copy, ``[C, S]``.
    precision, sustained
        As ``layer_work``.

    Returns
    -------
    Priced
        Seconds, the shape of ``own``.

    Notes
    -----
    Source: as ``layer_work``.
    """
    formats = formats_of(shape, precision)
    products = held_gemms if sustained else run_gemms
    ranks = np.broadcast_to(attention_ranks(layouts), own.shape)
    kernels = facts.generation.kernels_per_layer * shape.parts_per_layer / 2.0 + _norms_apart(facts, shape)
    work = facts.device.memory_bound(_small_bytes(shape, ranks) * own, kernels)
    work = facts.generation.scaled(work, "element_wise_ratio")
    work = work + _quantization(facts, shape, formats, own, ranks)
    whole = sparse_modules(facts, shape) or (shape.mla is not None and facts.device.mla_covers_projections)
    if not whole:
        share = shape.num_attention_layers / shape.num_layers
        for sizes, part in attention_products(shape, ranks):
            work = work + products(facts, own, sizes, formats.attention) * (share * part)
    if shape.linear is not None:
        share = shape.num_linear_layers / shape.num_layers
        work = work + products(facts, own, linear_gemms(shape, ranks), formats.attention) * share
        if shape.linear.kind != "mamba2":  # a Mamba mixer's price has its small kernels
            work = work + facts.device.memory_bound(0.0 * own, LINEAR_KERNELS) * share
    # A dense MLP runs with the attention: on the same ranks, as many copies.
    if shape.num_dense_layers:
        mlp = mlp_gemms(shape, shape.ffn / ranks.astype(np.float64))
        work = work + products(facts, own, mlp, formats.dense_mlp) * (shape.num_dense_layers / shape.num_layers)
    if latent := latent_gemms(shape, ranks.astype(np.float64)):  # checkpoints of narrower formats leave them out
        work = work + products(facts, own, latent, facts.plain_dtype) * (shape.num_moe_layers / shape.num_layers)
    return work


def _norms_apart(facts: Facts, shape: ModelShape) -> float:
    """Kernels of an average layer for norms of queries and keys, where the part's engines have one for each."""
    apart = facts.device.spec.kernels.norms_apart
    return apart * shape.qk_norm * (shape.num_attention_layers / shape.num_layers)


def expert_work(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, rows: Floats, precision: str) -> Priced:
    """The part of ``layer_work`` that all ranks of a stage do together: the experts of an average layer.

    Parameters
    ----------
    facts, shape, layouts, rows, precision
        As ``layer_work``.

    Returns
    -------
    Priced
        Seconds, the shape of ``rows``.

    Notes
    -----
    Source: as ``layer_work``.
    """
    formats = formats_of(shape, precision)
    same = np.zeros(rows.shape, dtype=np.int64)
    tp, groups = layouts.tp[:, None] + same, layouts.ep[:, None] + same
    dtype = expert_kernels(facts, formats.experts)
    experts = moe.experts_decode(facts, shape, rows, tp, groups, dtype, formats.shared_experts)
    return experts * (shape.num_moe_layers / shape.num_layers)


def _quantization(facts: Facts, shape: ModelShape, formats: Formats, rows: Floats, ranks: Ints) -> Priced:
    """Kernels that turn the inputs of an average layer's products into the format of their weights.

    One each for the inputs of attention, its output, the MLP and its second product: two bytes read and one written.
    Those of routed experts are in the experts' tables.
    """
    dense = shape.num_dense_layers / shape.num_layers
    widths = [
        (formats.attention, shape.hidden + shape.o_width / ranks, 1.0),
        (formats.dense_mlp, shape.hidden + shape.ffn / ranks, dense),
    ]
    if shape.moe is not None and shape.moe.shared_ffn:
        widths += [(formats.shared_experts, shape.hidden + shape.moe.shared_ffn / ranks, 1.0 - dense)]
    parts = Priced.zero(rows.shape)
    for dtype, width, share in widths:
        quantizes = dtype in QUANTIZED_ACTIVATIONS and facts.device.spec.computes(dtype)
        if quantizes and dtype not in facts.generation.fused_quantization:
            parts = parts + facts.device.memory_bound(3.0 * rows * width, 2.0) * share
    return parts


def sampling_head(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, sequences: Floats) -> Priced:
    """Vocabulary projection of one row per sequence, then reads of fp32 logits by softmax and sampling.

    Parameters
    ----------
    sequences
        That are sampled in a step, ``[C, S]``.

    Returns
    -------
    Priced
        Seconds, the shape of ``sequences``.
    """
    own = sequences / layouts.attention_dp[:, None]
    ranks = np.broadcast_to(attention_ranks(layouts), own.shape).astype(np.float64)
    gemm = [(shape.vocab / ranks, shape.hidden + 0 * ranks)]
    sampling = facts.device.memory_bound(SAMPLING_BYTES_PER_LOGIT * own * shape.vocab, SAMPLING_KERNELS)
    return run_gemms(facts, own, gemm, facts.plain_dtype) + sampling


def _small_bytes(shape: ModelShape, ranks: Ints) -> Floats:
    """Memory traffic per token of one layer's small kernels, bytes.

    Two norms with the residual each read and write two tensors on every rank (8 h; engines have no sequence
    parallelism); rotary and cache write (2 (q + kv)) and the activation (3 f) are shared over the ranks. Layers that
    are a mixer or an MLP alone have one norm, and heads where they have attention.
    """
    attention = shape.num_attention_layers / shape.num_layers if shape.num_mixer_free_layers else 1.0
    inner = 2 * attention * (shape.q_width + shape.kv_width) + 3 * mlp_width_per_token(shape)
    return np.asarray(ACTIVATION_BYTES * (4 * shape.parts_per_layer * shape.hidden + inner / ranks), dtype=np.float64)
