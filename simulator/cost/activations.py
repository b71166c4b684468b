"""Activations of a trainer: what a layer keeps of a token, and the tokens that a rank holds at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.cost.gemms import ACTIVATION_BYTES
from simulator.cost.mixers import KEPT_SCORE_BYTES, scores_per_token
from simulator.cost.parameters import mlp_width
from simulator.cost.token_quantiles import tokens_at

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats
    from simulator.facts import Facts, SelectiveRecompute
    from simulator.plan.layouts import Layouts


def recomputed_share(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Share of a stage's layers that full recomputation covers.

    Returns
    -------
    Floats
        Shares, ``[C]``.
    """
    covered = facts.implementation.recompute_layers
    if covered is None:
        return np.ones(len(layouts))
    return np.asarray(np.minimum(covered / np.ceil(shape.num_layers / layouts.pp), 1.0), dtype=np.float64)


def activation_bytes_per_token(
    shape: ModelShape,
    layouts: Layouts,
    element_bytes: float = ACTIVATION_BYTES,
    selective: SelectiveRecompute = "element-wise",
    sequence_parallel: bool = True,
) -> Floats:
    """Saved activations of one layer per token, on one rank, by recompute level.

    ``none``: inputs of both norms and both blocks (4 h), query, key, value and attention output (2 q + 2 kv), and
    gate, up and product (3 f), over ``t`` with sequence parallelism; without it each rank keeps hidden states whole.
    For Llama this equals 32 h, against
    34 h of Korthikanti et al. 2022 for a GeLU MLP of 4 h with dropout. ``selective`` drops what element-wise
    recomputation restores (the normalised inputs and the product; scores of attention in tensor operations), or keeps
    the layer's input, attention's output and every other product (query, value, gate, down); ``full`` keeps the
    layer's input alone.

    Parameters
    ----------
    element_bytes
        Bytes of one activation.
    selective
        What selective recomputation computes again.
    sequence_parallel
        Whether tensor-parallel ranks split hidden states between them.

    Returns
    -------
    Floats
        Bytes per token of one layer, ``[C]``.
    """
    width, mixer = mlp_width(shape), float(2 * shape.q_width + 2 * shape.kv_width)
    linear = 0
    if shape.linear is not None:
        linear = shape.linear.in_width + shape.linear.gate_width + 2 * shape.linear.value_width
    mixer = (shape.num_attention_layers * mixer + shape.num_linear_layers * linear) / shape.num_layers
    if shape.num_mlp_free_layers:
        width = width * (1.0 - shape.num_mlp_free_layers / shape.num_layers)
    everything = 4 * shape.hidden + mixer + 3 * width
    kept = 2 * shape.hidden + mixer + 2 * width
    if selective == "every-second-product":
        kept = 2 * shape.hidden + 2 * shape.q_width + shape.kv_width + width
    per_level = np.asarray([everything, kept, shape.hidden], dtype=np.float64) * element_bytes
    split = np.asarray(per_level[layouts.recompute] / layouts.tp, dtype=np.float64)
    if sequence_parallel:
        return split
    hidden = np.asarray([4.0, 2.0, 1.0])[layouts.recompute] * shape.hidden * element_bytes
    return np.asarray(split + hidden * (1.0 - 1.0 / layouts.tp), dtype=np.float64)


def batch_tokens(facts: Facts, layouts: Layouts, samples: Floats, num_micro: Floats | float, level: float) -> Floats:
    """Tokens that one rank holds of so many micro-batches together, at a level of probability.

    Padding is removed, so that is the quantile of a sum of lengths; packs are full whatever they hold. A budget is
    full, too, unless one sample is longer or all are fewer.

    Parameters
    ----------
    samples
        Of a data-parallel rank in the call or step, ``[C]``.
    num_micro
        Micro-batches, ``[C]`` or one number.
    level
        As in ``token_quantiles.tokens_at``.

    Returns
    -------
    Floats
        Tokens, ``[C]``.
    """
    packed, held = facts.implementation.packed_tokens, np.asarray(layouts.micro_batch * num_micro, dtype=np.float64)
    tokens = held * float(packed) if packed else tokens_at(facts.workload, held, level)
    if np.any(layouts.token_budget):
        one, every = (tokens_at(facts.workload, num, level) for num in (np.ones(len(layouts)), samples))
        budgeted = np.minimum(np.maximum(layouts.token_budget, one) * num_micro, every)
        tokens = np.where(layouts.token_budget > 0, budgeted, tokens)
    return np.asarray(tokens / layouts.cp, dtype=np.float64)


def bytes_of_whole_layer(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Activations of a token in one layer of which nothing is computed again.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    split, whole = facts.training.sequence_parallel, _at_level(layouts, 0)
    kept = activation_bytes_per_token(shape, whole, facts.activation_bytes, sequence_parallel=split)
    return kept + _score_bytes_per_token(facts, shape, whole)


def _score_bytes_per_token(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Scores that a layer keeps of a token where attention is written in tensor operations, by recompute level."""
    if facts.implementation.attention_kernel != "math":
        return np.zeros(len(layouts))
    longest = facts.workload.trained_prompt_tokens + facts.workload.response.maximum
    scores = scores_per_token(shape, float(longest), layouts.tp) * shape.num_attention_layers / shape.num_layers
    return np.where(layouts.recompute == 0, scores * KEPT_SCORE_BYTES, 0.0)


def saved_bytes_per_token(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Activations that a layer keeps of a token for the backward pass, on the GPU.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    built, layers = facts.implementation, np.ceil(shape.num_layers / layouts.pp)
    split = facts.training.sequence_parallel
    per_token = activation_bytes_per_token(shape, layouts, facts.activation_bytes, built.selective_recompute, split)
    per_token = per_token + _score_bytes_per_token(facts, shape, layouts)
    if built.checkpoints == "host":  # those of two layers are on their way
        per_token = per_token * np.where(layouts.recompute == 2, np.minimum(2.0 / layers, 1.0), 1.0)
    if built.recompute_layers is not None:
        whole_layer = bytes_of_whole_layer(facts, shape, layouts)
        share = recomputed_share(facts, shape, layouts)
        per_token = np.where(layouts.recompute == 2, per_token * share + whole_layer * (1.0 - share), per_token)
    return per_token


def in_flight(layouts: Layouts) -> tuple[Floats, Floats]:
    """Micro-batches that the first and the last stage of a pipeline hold at most between forward and backward passes.

    Returns
    -------
    tuple[Floats, Floats]
        Micro-batches, ``[C]`` each.

    Notes
    -----
    Source: 1F1B and interleaved 1F1B of Narayanan et al. 2021: a stage with ``s`` behind it starts
    ``2 s + (v - 1) p + 1`` chunks before its first backward pass, each of a ``v``-th of its layers, and ``s + 1``
    micro-batches without chunks.
    """
    p, v = layouts.pp, layouts.vpp
    first = np.where(v > 1, p + (p - 1) / v, p)
    last = p - (p - 1) / v
    return np.asarray(first, dtype=np.float64), np.asarray(last, dtype=np.float64)


def _at_level(layouts: Layouts, level: int) -> Layouts:
    return replace(layouts, recompute=np.full_like(layouts.recompute, level))
