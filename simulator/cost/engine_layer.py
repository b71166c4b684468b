"""One layer of an inference engine on one rank, and its vocabulary head: GPU work and collectives, no host time.

``rows`` are the tokens that a step computes in the whole engine (one pipeline group of them), shape ``[C, S]``;
decode tokens and prompt tokens alike go through the projections and the feed-forward together. Inside the ``tp``
GPUs of a stage attention runs as ``attention_dp`` copies and experts lie in ``ep`` groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Ints, Priced, longer
from simulator.cost import delta_net, mamba, moe
from simulator.cost.formats import QUANTIZED_ACTIVATIONS, expert_kernels, formats_of, kv_dtype, mla_dtype
from simulator.cost.gemm_sizes import attention_products, latent_gemms, linear_gemms, mlp_gemms, mlp_width_per_token
from simulator.cost.gemms import ACTIVATION_BYTES, held_gemms, run_gemms
from simulator.cost.indexer import as_shorter_prompts, index_scores

if TYPE_CHECKING:
    from profiles.models.layers import SoftmaxKind
    from profiles.models.shape import ModelShape
    from simulator.cost.formats import Formats
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

SAMPLING_BYTES_PER_LOGIT = 16.0
SAMPLING_KERNELS = 12
"""About four passes over fp32 logits in a dozen kernels: temperature, softmax, top-p, draw."""

LINEAR_KERNELS = 4
"""Small kernels of a linear mixer: split of the projection, norms of queries and keys, rates of decay, gated norm."""

L2_OVER_MEMORY = 2.0
"""Read rate of the L2 cache over that of memory: public microbenchmarks have 4 to 5 against 2 TB/s on A100 and 5.5 to
6 against 3.35 TB/s on H100."""


def attention_ranks(layouts: GenerationLayouts) -> Ints:
    """GPUs that share the heads of one sequence.

    Parameters
    ----------
    layouts
        Layouts, ``[C]``.

    Returns
    -------
    Ints
        GPUs, ``[C, 1]``.
    """
    return layouts.attention_ranks[:, None]


def layer_work(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, rows: Floats, precision: str, sustained: bool = False
) -> Priced:
    """Projections, feed-forward and small kernels of one average layer.

    Parameters
    ----------
    facts, shape, layouts
        What is known of job, device and engines; the model; layouts, ``[C]``.
    rows
        Tokens of a step in the whole engine, ``[C, S]``.
    precision
        Number format of weights and GEMMs.
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
    whole = _sparse_modules(facts, shape) or (shape.mla is not None and facts.device.mla_covers_projections)
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


def attention_of_decode(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, sequences: Floats, context: Floats, precision: str
) -> Priced:
    """Attention of one new token per sequence, one layer.

    Parameters
    ----------
    facts, shape, layouts
        What is known of job, device and engines; the model; layouts, ``[C]``.
    sequences, context
        Sequences of a step in the whole engine, and mean tokens of cache of each, ``[C, S]``.
    precision
        Number format of weights and GEMMs.

    Returns
    -------
    Priced
        Seconds, the shape of ``sequences``.

    Notes
    -----
    Source: measured decode tables; left-out points are 2 to 3 % off on the median. All sequences are taken at the mean
    context.
    """
    own, heads = _heads(shape, layouts, sequences)
    ranks = np.broadcast_to(attention_ranks(layouts), sequences.shape)
    softmax = _latent_of_decode if shape.mla is not None else _softmax_of_decode
    attention = softmax(facts, shape, own, context, heads, ranks, precision)
    if shape.linear is None:
        return attention
    share = shape.num_linear_layers / shape.num_layers
    mixer = mamba.mixer_step if shape.linear.kind == "mamba2" else delta_net.step
    return attention + mixer(facts, shape.linear, own, ranks) * share


def _latent_of_decode(
    facts: Facts, shape: ModelShape, own: Floats, context: Floats, heads: Ints, _ranks: Ints, precision: str
) -> Priced:
    """Latent attention of an average layer in a step."""
    projections, cache = mla_dtype(facts, formats_of(shape, precision).attention), kv_dtype(facts, precision)
    if _sparse_modules(facts, shape):
        return facts.device.sparse_attention("decode", (own, context, heads), shape.hidden, projections, cache)
    read = context if shape.sparse is None else np.minimum(context, shape.sparse.topk)
    latent = facts.device.mla_decode(own, read, heads, projections, cache)
    latent = latent * (shape.num_attention_layers / shape.num_layers)
    return latent if shape.sparse is None else latent + _indexer(facts, shape, own * context)


def _softmax_of_decode(
    facts: Facts, shape: ModelShape, own: Floats, context: Floats, heads: Ints, ranks: Ints, precision: str
) -> Priced:
    """Attention over keys and values of an average layer in a step, each kind of layer by itself."""
    cache, parts = kv_dtype(facts, precision), Priced.zero(own.shape)
    for kind in shape.softmax_kinds:
        kv, read = _kv_heads(kind, ranks), np.minimum(context, kind.topk) if kind.topk else context
        price = facts.device.attention_decode(own, read, heads, kv, kind.head_dim, cache, kind.window)
        parts = parts + (price.at_best(Basis.ANALYTIC) if kind.topk else price) * (kind.layers / shape.num_layers)
    kv = np.maximum(shape.num_kv_heads // ranks, 1)
    parts = longer(parts, _instructions(facts, shape, own, context, (heads, kv), cache))
    attention = facts.generation.scaled(parts, "attention_ratio")
    return attention if shape.sparse is None else attention + _indexer(facts, shape, own * context)


def _instructions(
    facts: Facts, shape: ModelShape, own: Floats, context: Floats, heads: tuple[Ints, Ints], cache: str
) -> Priced:
    """Least time of decode kernels of before 2025, which turn each element of the cache to 16 bits themselves.

    They are bound by these instructions: a narrower cache saves memory and no time. A kernel without groups spends them
    for every query head, at the rate at which it could read 16-bit elements from the L2; one with groups once, at that
    of memory. Zero for engines whose kernels are of today.
    """
    groups, plain = facts.generation.grouped_query_kernels, facts.plain_dtype
    if groups is None or shape.mla is not None:
        return Priced.zero(np.broadcast_shapes(own.shape, context.shape))
    query, kv = heads
    if cache == "fp8" and shape.num_heads // shape.num_kv_heads in groups:
        return facts.device.attention_decode(own, context, query, kv, shape.head_dim, plain).at_best(Basis.ANALYTIC)
    apart = facts.device.attention_decode(own, context, query, query, shape.head_dim, plain)
    return (apart * (1.0 / L2_OVER_MEMORY)).at_best(Basis.ANALYTIC)


def attention_of_prefill(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, sequences: Floats, length: Floats, precision: str
) -> Priced:
    """Causal attention of prompts, one layer.

    Parameters
    ----------
    facts, shape, layouts
        What is known of job, device and engines; the model; layouts, ``[C]``.
    sequences, length
        Prompts of a step in the whole engine, and tokens of each, ``[C, S]``.
    precision
        Number format of weights and GEMMs.

    Returns
    -------
    Priced
        Seconds, the shape of ``sequences``.
    """
    own, heads = _heads(shape, layouts, sequences)
    ranks = np.broadcast_to(attention_ranks(layouts), sequences.shape)
    softmax = _latent_of_prefill if shape.mla is not None else _softmax_of_prefill
    attention = softmax(facts, shape, own, length, heads, ranks, precision)
    if shape.linear is None:
        return attention
    share = shape.num_linear_layers / shape.num_layers
    if shape.linear.kind == "mamba2":
        return attention + mamba.mixer_forward(facts, shape.linear, own * length, ranks) * share
    return attention + delta_net.forward(facts, shape.linear, own, length, ranks) * share


def _latent_of_prefill(
    facts: Facts, shape: ModelShape, own: Floats, length: Floats, heads: Ints, _ranks: Ints, precision: str
) -> Priced:
    """Latent attention of prompts in an average layer."""
    projections, cache = mla_dtype(facts, formats_of(shape, precision).attention), kv_dtype(facts, precision)
    if _sparse_modules(facts, shape):
        return facts.device.sparse_attention("prefill", (own, length, heads), shape.hidden, projections, cache)
    prompts, read = (own, length) if shape.sparse is None else as_shorter_prompts(own, length, shape.sparse.topk)
    latent = facts.device.mla_prefill(prompts, read, heads, projections, cache)
    latent = latent * (shape.num_attention_layers / shape.num_layers)
    return latent if shape.sparse is None else latent + _indexer(facts, shape, own * length * length / 2.0, prompt=True)


def _softmax_of_prefill(
    facts: Facts, shape: ModelShape, own: Floats, length: Floats, heads: Ints, ranks: Ints, precision: str
) -> Priced:
    """Attention over keys and values of prompts in an average layer, each kind of layer by itself."""
    cache, parts = kv_dtype(facts, precision), Priced.zero(np.broadcast_shapes(own.shape, length.shape))
    for kind in shape.softmax_kinds:
        prompts, read = as_shorter_prompts(own, length, kind.topk) if kind.topk else (own, length)
        kv = _kv_heads(kind, ranks)
        price = facts.device.attention_prefill(prompts, read, heads, kv, kind.head_dim, cache, kind.window)
        parts = parts + (price.at_best(Basis.ANALYTIC) if kind.topk else price) * (kind.layers / shape.num_layers)
    return parts if shape.sparse is None else parts + _indexer(facts, shape, own * length * length / 2.0, prompt=True)


def _sparse_modules(facts: Facts, shape: ModelShape) -> bool:
    """Whether the device's tables hold the model's sparse attention as a whole, with an indexer in every layer."""
    sparse = shape.sparse
    return sparse is not None and sparse.num_layers == shape.num_layers and facts.device.has_sparse(shape.hidden)


def _indexer(facts: Facts, shape: ModelShape, pairs: Floats, prompt: bool = False) -> Priced:
    """Indexer of sparse attention in an average layer, over pairs of a query and a cached token: it is not sharded."""
    assert shape.sparse is not None
    return index_scores(facts, shape.sparse, pairs, prompt) * (shape.sparse.num_layers / shape.num_layers)


def sampling_head(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, sequences: Floats) -> Priced:
    """Vocabulary projection of one row per sequence, then reads of fp32 logits by softmax and sampling.

    Parameters
    ----------
    facts, shape, layouts
        What is known of job, device and engines; the model; layouts, ``[C]``.
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


def _heads(shape: ModelShape, layouts: GenerationLayouts, sequences: Floats) -> tuple[Floats, Ints]:
    """Sequences of one attention copy, and query heads of one rank."""
    ranks = np.broadcast_to(attention_ranks(layouts), sequences.shape)
    return sequences / layouts.attention_dp[:, None], np.maximum(shape.num_heads // ranks, 1)


def _kv_heads(kind: SoftmaxKind, ranks: Ints) -> Ints:
    """KV heads of one rank; there is one on each where they are fewer than ranks."""
    return np.maximum(kind.num_kv_heads // ranks, 1)


def _small_bytes(shape: ModelShape, ranks: Ints) -> Floats:
    """Memory traffic per token of one layer's small kernels, bytes.

    Two norms with the residual each read and write two tensors on every rank (8 h; engines have no sequence
    parallelism); rotary and cache write (2 (q + kv)) and the activation (3 f) are shared over the ranks. Layers that
    are a mixer or an MLP alone have one norm, and heads where they have attention.
    """
    attention = shape.num_attention_layers / shape.num_layers if shape.num_mixer_free_layers else 1.0
    inner = 2 * attention * (shape.q_width + shape.kv_width) + 3 * mlp_width_per_token(shape)
    return np.asarray(ACTIVATION_BYTES * (4 * shape.parts_per_layer * shape.hidden + inner / ranks), dtype=np.float64)
