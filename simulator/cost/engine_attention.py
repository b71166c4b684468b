"""Attention of one layer of an inference engine on one rank, of new tokens and of prompts: GPU work, no host time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Ints, Priced, longer
from simulator.cost import delta_net, mamba
from simulator.cost.formats import formats_of, kv_dtype, mla_dtype
from simulator.cost.indexer import as_shorter_prompts, index_scores, prompt_ratio

if TYPE_CHECKING:
    from profiles.models.layers import SoftmaxKind
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

L2_OVER_MEMORY = 2.0
"""Read rate of the L2 cache over that of memory: public microbenchmarks have 4 to 5 against 2 TB/s on A100 and 5.5 to
6 against 3.35 TB/s on H100."""


def attention_ranks(layouts: GenerationLayouts) -> Ints:
    """GPUs that share the heads of one sequence.

    Returns
    -------
    Ints
        GPUs, ``[C, 1]``.
    """
    return layouts.attention_ranks[:, None]


def attention_of_decode(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, sequences: Floats, context: Floats, precision: str
) -> Priced:
    """Attention of one new token per sequence, one layer.

    Parameters
    ----------
    sequences, context
        Sequences of a step in the whole engine, and mean tokens of cache of each, ``[C, S]``.

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
    if sparse_modules(facts, shape):
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
    sequences, length
        Prompts of a step in the whole engine, and tokens of each, ``[C, S]``.

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
    if sparse_modules(facts, shape):
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
    ratio = 1.0 if shape.sparse is None else prompt_ratio(facts, shape.sparse)
    for kind in shape.softmax_kinds:
        prompts, read = as_shorter_prompts(own, length, kind.topk) if kind.topk else (own, length)
        kv = _kv_heads(kind, ranks)
        price = facts.device.attention_prefill(prompts, read, heads, kv, kind.head_dim, cache, kind.window)
        price = price.at_best(Basis.ANALYTIC) * ratio if kind.topk else price
        parts = parts + price * (kind.layers / shape.num_layers)
    if shape.sparse is None:
        return parts
    return parts + _indexer(facts, shape, own * length * length / 2.0, prompt=True) * ratio


def sparse_modules(facts: Facts, shape: ModelShape) -> bool:
    """Whether the device's tables hold the model's sparse attention as a whole, with an indexer in every layer.

    Returns
    -------
    bool
        Where they do, projections are part of it.
    """
    sparse = shape.sparse
    return sparse is not None and sparse.num_layers == shape.num_layers and facts.device.has_sparse(shape.hidden)


def _indexer(facts: Facts, shape: ModelShape, pairs: Floats, prompt: bool = False) -> Priced:
    """Indexer of sparse attention in an average layer, over pairs of a query and a cached token: it is not sharded."""
    assert shape.sparse is not None
    return index_scores(facts, shape.sparse, pairs, prompt) * (shape.sparse.num_layers / shape.num_layers)


def _heads(shape: ModelShape, layouts: GenerationLayouts, sequences: Floats) -> tuple[Floats, Ints]:
    """Sequences of one attention copy, and query heads of one rank."""
    ranks = np.broadcast_to(attention_ranks(layouts), sequences.shape)
    return sequences / layouts.attention_dp[:, None], np.maximum(shape.num_heads // ranks, 1)


def _kv_heads(kind: SoftmaxKind, ranks: Ints) -> Ints:
    """KV heads of one rank; there is one on each where they are fewer than ranks."""
    return np.maximum(kind.num_kv_heads // ranks, 1)
