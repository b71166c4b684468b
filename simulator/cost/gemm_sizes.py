"""Sizes of a layer's matrix products on one rank: projections of attention, of linear mixers, of MLPs and experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.models.layers import SoftmaxKind

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints


def attention_gemms(shape: ModelShape, tp: Ints) -> list[tuple[Floats, Floats]]:
    """Sizes of the attention projections of one rank.

    Parameters
    ----------
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    list[tuple[Floats, Floats]]
        ``(n, k)`` of each ``[rows, k] x [k, n]``, ``[C]`` each.
    """
    h, t = float(shape.hidden), np.asarray(tp, dtype=np.float64)
    if shape.mla is None:
        return _softmax_gemms(shape, SoftmaxKind(shape.num_attention_layers, shape.num_kv_heads, shape.head_dim), t)
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
    t = np.asarray(tp, dtype=np.float64)
    return [(_softmax_gemms(shape, kind, t), kind.layers / shape.num_attention_layers) for kind in shape.softmax_kinds]


def _softmax_gemms(shape: ModelShape, kind: SoftmaxKind, tp: Floats) -> list[tuple[Floats, Floats]]:
    """In and out of one layer of a kind; a KV head is replicated where there are fewer of them than ranks."""
    h, query = float(shape.hidden) + 0 * tp, shape.num_heads * kind.head_dim / tp
    keys = kind.head_dim * np.maximum(kind.num_kv_heads / tp, 1.0) * (1 if kind.values_are_keys else 2)
    index = (shape.sparse.index_heads + 1) * shape.sparse.index_head_dim if kind.topk and shape.sparse else 0
    return [(query * (2 if shape.attention_gate else 1) + keys + index, h), (h, query)]


def linear_gemms(shape: ModelShape, tp: Ints) -> list[tuple[Floats, Floats]]:
    """Sizes of the projections of a linear mixer of one rank: in (all inputs and the gate), Kimi's gates, out.

    Parameters
    ----------
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

    Returns
    -------
    float
        Elements; of a mixture of experts those that a token chooses and the shared ones.
    """
    if shape.moe is None:
        return shape.num_dense_layers * shape.ffn / shape.num_layers
    routed = shape.moe.experts_per_token * shape.moe.expert_ffn + shape.moe.shared_ffn
    return (shape.num_dense_layers * shape.ffn + shape.num_moe_layers * routed) / shape.num_layers
