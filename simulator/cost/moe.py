"""Mixture-of-experts layers to first order: routed experts as grouped GEMMs, all-to-all, shared experts.

Expert parallelism spreads the experts over ``ep`` GPUs, whole experts each; without it every rank holds its
tensor-parallel slice of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import NoBasisError
from profiles.records import Basis, where
from simulator.cost import comms
from simulator.cost.gemms import ACTIVATION_BYTES, linear_training, mlp_gemms, run_gemms

if TYPE_CHECKING:
    from profiles.models.layers import MoeShape
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints, Priced
    from simulator.cost.compute import Batch
    from simulator.facts import Facts


def routed_rows(shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Floats:
    """Token copies that one GPU's experts work on; with expert parallelism each GPU brings its share of the tokens.

    Parameters
    ----------
    shape
        The model.
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp, ep
        Tensor- and expert-parallel degrees, ``[C]``.

    Returns
    -------
    Floats
        Rows, ``[C]``.

    Raises
    ------
    NoBasisError
        The model has no experts.
    """
    moe = _moe(shape)
    return np.asarray(tokens * moe.experts_per_token / np.where(ep > 1, tp, 1), dtype=np.float64)


def experts_training(
    facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints, ep: Ints
) -> tuple[Priced, Priced]:
    """Router, routed and shared experts of one layer, on one rank.

    Each local expert is one GEMM of its mean number of rows; the table prices it at that size.

    Parameters
    ----------
    facts, shape, batch
        What is known of job, device and engines; the model; micro-batch of a rank, ``[C]``.
    tp, cp, ep
        Degrees, ``[C]``.

    Returns
    -------
    tuple[Priced, Priced]
        Seconds forward and backward, ``[C]`` each.

    Raises
    ------
    NoBasisError
        The model has no experts.

    Notes
    -----
    No table holds grouped training GEMMs: launches and host time of small experts are not in it, and published mixtures
    train slower than predicted (docs/accuracy.md).
    """
    moe = _moe(shape)
    tokens = batch.tokens / cp
    rows = routed_rows(shape, tokens, tp, ep) * np.where(ep > 1, facts.implementation.expert_imbalance, 1.0)
    local = moe.num_experts / np.asarray(ep, dtype=np.float64)
    width = moe.expert_ffn / np.where(ep > 1, 1, tp).astype(np.float64)
    gemms = mlp_gemms(shape, width)
    dtype = facts.implementation.training_dtype
    once, inputs, weights = linear_training(facts, rows / local, gemms, dtype, batch.sustained, grouped=True)
    forward, backward = once * local, (inputs + weights) * local
    passes = 2.0 * facts.training.moe_row_passes  # a pass reads a row and writes it
    permute = facts.device.memory_bound(
        rows * shape.hidden * ACTIVATION_BYTES * passes, 2 * facts.training.moe_row_passes
    ).at_best(facts.training.basis("moe_row_passes"))
    dense = [(np.full_like(width, moe.num_experts), np.full_like(width, shape.hidden))]
    if moe.shared_ffn:
        dense += mlp_gemms(shape, moe.shared_ffn / np.asarray(tp, dtype=np.float64))
    beside, dense_inputs, dense_weights = linear_training(facts, tokens, dense, "bf16", batch.sustained)
    return forward + permute + beside, backward + permute + dense_inputs + dense_weights


def experts_decode(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints, dtype: str) -> Priced:
    """Routed and shared experts of one layer in an engine, from the measured MoE table.

    ``tp`` GPUs hold the layer: experts whole over ``ep`` groups of them, sliced inside a group. The router stays in
    bf16; shared experts are sliced over all ``tp``.

    Parameters
    ----------
    facts, shape
        What is known of job, device and engines; the model.
    tokens
        Of a step in the whole engine, ``[C, S]``.
    tp, ep
        GPUs of the layer and groups of experts, the shape of ``tokens``.
    dtype
        Number format of the GEMMs.

    Returns
    -------
    Priced
        Seconds, the shape of ``tokens``.

    Raises
    ------
    NoBasisError
        The model has no experts, or the device no MoE table.

    Notes
    -----
    Routing is the tables' power law, as engines see it; left-out points are 2 % off on the median.
    """
    moe = _moe(shape)
    t, e = np.asarray(tp, dtype=np.int64), np.asarray(ep, dtype=np.int64)
    key = (shape.hidden, moe.expert_ffn, moe.experts_per_token, moe.num_experts, np.maximum(t // e, 1), e)
    routed = facts.device.moe(tokens, *key, dtype)
    if dtype == "fp8":
        # Block scaling is the same GEMM with more scales: where its kernel is the faster one, the other's was not
        # tuned for the shape, and an engine would not lose to it by as much.
        block = facts.device.moe(tokens, *key, "fp8_block")
        routed = where(block.s < routed.s, block.at_best(Basis.ANALYTIC), routed)
    ranks = t.astype(np.float64)
    router = [(np.full_like(ranks, moe.num_experts), np.full_like(ranks, shape.hidden))]
    work = routed + run_gemms(facts, tokens, router, "bf16")
    if moe.shared_ffn:
        work = work + run_gemms(facts, tokens, mlp_gemms(shape, moe.shared_ffn / ranks), dtype)
    return work


def dispatch_and_combine(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Priced:
    """All-to-all there and back of one layer forward (the backward pass moves the same again).

    Parameters
    ----------
    facts, shape
        What is known of job, device and engines; the model.
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp, ep
        Tensor- and expert-parallel degrees, ``[C]``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.

    Raises
    ------
    NoBasisError
        The model has no experts.

    Notes
    -----
    NCCL's all-to-all with a copy for each chosen expert; kernels that send a token once per rank (DeepEP) are faster.
    """
    sent = routed_rows(shape, tokens, tp, ep) * facts.implementation.expert_imbalance
    sent = sent * shape.hidden * ACTIVATION_BYTES
    return comms.strided(facts, "all_to_all", sent, ep, np.ones_like(ep)) * 2.0


def _moe(shape: ModelShape) -> MoeShape:
    if shape.moe is None:
        raise NoBasisError(f"{shape.name} has no experts")
    return shape.moe
