"""Mixers of the trainer, attention and linear ones, forward and backward, without their projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Priced, longer
from simulator.cost import delta_net, mamba
from simulator.cost.indexer import as_shorter_prompts, index_scores

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.cost.compute import Batch
    from simulator.facts import Facts

FLASH_BACKWARD_FLOP_RATIO = 2.5
"""FLOPs of flash attention backward over forward: five matrix products instead of two."""


SCORE_BYTES = (20.0, 20.0)
"""Memory traffic per score of attention in tensor operations beside its products, forward and backward, one pass over
memory each: divide (4), add the mask (4), softmax in FP32 (6), cast back (6); backward: cast (6), softmax with its FP32
output (10), divide (4)."""

SCORE_PRODUCTS = (2, 4)
"""Products, each of which writes or reads all scores in bf16: scores and their sum over values; the gradients of
values, scores, queries and keys."""

SCORE_KERNELS = (4, 3)
"""Launches of the operations beside products, forward and backward."""

KEPT_SCORE_BYTES = 6.0
"""Of a score until the backward pass: the softmax in FP32 and its copy in bf16."""


def attention_forward(facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints) -> Priced:
    """Causal self-attention of the micro-batch in an average layer that has attention, some of them with a window.

    Context parallelism shares it evenly (zigzag order), or leaves the last rank most (``busiest_share``).

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    tp, cp
        Tensor- and context-parallel degrees, ``[C]``.

    Returns
    -------
    Priced
        Seconds of one layer, ``[C]``.

    Notes
    -----
    Source: measured prefill tables at the sequence's own length; ring attention (Liu et al. 2023) is taken as perfectly
    balanced where ranks hold a piece from each end.
    """
    heads = shape.num_heads / np.asarray(tp, dtype=np.float64)
    if shape.mla is not None and not facts.device.mla_covers_projections:
        return facts.device.mla_prefill(batch.sequences, batch.length, heads) * busiest_share(facts, cp)
    found = Priced.zero(np.broadcast_shapes(batch.tokens.shape, heads.shape))
    for kind in shape.softmax_kinds:
        kv = np.maximum(kind.num_kv_heads / np.asarray(tp, dtype=np.float64), 1.0)
        prompts, read = batch.sequences, batch.length
        if kind.topk:
            prompts, read = as_shorter_prompts(prompts, read, kind.topk)
        price = facts.device.attention_prefill(prompts, read, heads, kv, kind.head_dim, window=kind.window)
        if kind.topk and shape.sparse is not None:
            pairs = batch.sequences * batch.length * batch.length / 2.0
            price = price.at_best(Basis.ANALYTIC) + index_scores(facts, shape.sparse, pairs, prompt=True)
        found = found + price * (kind.layers / shape.num_attention_layers)
    return found * busiest_share(facts, cp)


def busiest_share(facts: Facts, cp: Ints) -> Floats:
    """Share of causal attention that the busiest context rank computes, which the others wait for in every layer.

    Parameters
    ----------
    cp
        Context-parallel degree, ``[C]``.

    Returns
    -------
    Floats
        ``1 / c`` where ranks are balanced (zigzag); ``(2 c - 1) / c^2`` where slices follow each other, ``[C]``.
    """
    c = np.asarray(cp, dtype=np.float64)
    return 1.0 / c if facts.training.balances_context else (2.0 * c - 1.0) / c**2


def linear_passes(facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints) -> tuple[Priced, Priced]:
    """Kernels of an average layer's linear mixer, forward and backward; ranks of a context group share the chunks.

    Backward is analytic: as flash attention's, five products of a chunk's matrices for two.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    tp, cp
        Tensor- and context-parallel degrees, ``[C]``.

    Returns
    -------
    tuple[Priced, Priced]
        Seconds of one layer forward and backward, ``[C]`` each.
    """
    assert shape.linear is not None
    ranks = np.asarray(tp, dtype=np.int64)
    if shape.linear.kind == "mamba2":
        forward = mamba.mixer_forward(facts, shape.linear, batch.tokens / cp, ranks)
    else:
        forward = delta_net.forward(facts, shape.linear, batch.sequences, batch.length, ranks) * (1.0 / cp)
    forward = forward * (shape.num_linear_layers / shape.num_layers)
    return forward, (forward * FLASH_BACKWARD_FLOP_RATIO).at_best(Basis.ANALYTIC)


def attention_passes(facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints) -> tuple[Priced, Priced]:
    """Attention forward, and backward by the engine's ratio: no table covers the backward kernel, so it is analytic.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    tp, cp
        Tensor- and context-parallel degrees, ``[C]``.

    Returns
    -------
    tuple[Priced, Priced]
        Seconds of one layer forward and backward, ``[C]`` each.
    """
    engine, spec = facts.training, facts.device.spec
    if facts.implementation.attention_kernel == "math":
        return _in_tensor_operations(facts, shape, batch, tp, cp)
    forward = engine.scaled(attention_forward(facts, shape, batch, tp, cp), "attention_ratio")
    backward = engine.scaled(forward, "attention_backward_ratio").at_best(Basis.ANALYTIC)
    rates = spec.flash_2_flop_per_s
    if facts.implementation.attention_kernel != "flash-2" or not rates:
        return forward, backward
    flop = 4.0 * batch.tokens * attended(shape, batch.length) * shape.q_width / np.asarray(tp, dtype=np.float64)
    flop = flop * busiest_share(facts, cp)
    return (
        longer(forward, Priced.of(flop / rates["forward"], spec.basis("flash_2_flop_per_s.forward"))),
        longer(
            backward,
            Priced.of(FLASH_BACKWARD_FLOP_RATIO * flop / rates["backward"], spec.basis("flash_2_flop_per_s.backward")),
        ),
    )


def scores_per_token(shape: ModelShape, length: Floats | float, tp: Ints) -> Floats:
    """Scores of a token in one attention layer on one rank: no kernel skips what the mask hides.

    Parameters
    ----------
    shape
        The model.
    length
        Of the token's sequence, ``[C]`` or one number.
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    Floats
        Scores, ``[C]``.
    """
    return np.asarray(length * shape.num_heads / np.asarray(tp, dtype=np.float64))


def _in_tensor_operations(facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints) -> tuple[Priced, Priced]:
    """Attention as Hugging Face's first Llama has it: products over the whole square, scores in memory between them.

    A product takes what it computes at the device's sustained rate or what it moves, whichever is longer. Nothing
    published times them apart.
    """
    spec = facts.device.spec
    scores = batch.tokens * scores_per_token(shape, batch.length, tp) / cp
    computed = Priced.of(2.0 * scores * shape.head_dim / spec.sustained("bf16"), spec.sustained_basis("bf16"))
    product = longer(facts.device.memory_bound(2.0 * scores, 1), computed)
    there, back = (
        facts.device.memory_bound(scores * num_bytes, kernels) + product * float(products)
        for num_bytes, kernels, products in zip(SCORE_BYTES, SCORE_KERNELS, SCORE_PRODUCTS, strict=True)
    )
    return there, back


def attended(shape: ModelShape, length: Floats) -> Floats:
    """Tokens that a token of a sequence attends to, on the mean over tokens and attention layers.

    Parameters
    ----------
    shape
        The model, whose sliding layers see a window.
    length
        Of the sequence, ``[C]``.

    Returns
    -------
    Floats
        Tokens, ``[C]``: the causal half, or the window less its ramp at the start.
    """
    window = np.minimum(shape.sliding_window or length, length)
    sliding = shape.num_sliding_layers / max(shape.num_attention_layers, 1)
    return np.asarray((1.0 - sliding) * length / 2.0 + sliding * window * (1.0 - window / (2.0 * length)))
