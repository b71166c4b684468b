"""Mixture-of-experts layers to first order: routed experts as grouped GEMMs, all-to-all, shared experts.

Expert parallelism spreads the experts over ``ep`` GPUs, whole experts each; without it every rank holds its
tensor-parallel slice of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import NoBasisError
from profiles.records import Basis, Priced, longer, where
from profiles.units import DTYPE_BYTES
from simulator.cost.gemm_sizes import latent_gemms, mlp_gemms
from simulator.cost.gemms import ACTIVATION_BYTES, linear_training, run_gemms

if TYPE_CHECKING:
    from profiles.models.layers import MoeShape
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.cost.compute import Batch
    from simulator.facts import Facts


UNFUSED_ACTIVATION_BYTES = 44.0
UNFUSED_ACTIVATION_KERNELS = 12
"""Memory traffic per element of an expert's width of a gated activation with clamps, one kernel per operation: both
halves copied apart (8), each clamped, scale, sigmoid, two products and a sum (4 each), cast of the scores; backward
twice that."""


def routed_rows(shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Floats:
    """Token copies that one GPU's experts work on; with expert parallelism each GPU brings its share of the tokens.

    Parameters
    ----------
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
    moe = moe_of(shape)
    return np.asarray(tokens * moe.experts_per_token / np.where(ep > 1, tp, 1), dtype=np.float64)


def experts_training(
    facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints, ep: Ints
) -> tuple[Priced, Priced]:
    """Router, routed and shared experts of one layer, on one rank.

    Each local expert is one GEMM of its mean number of rows; the table prices it at that size.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
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
    moe = moe_of(shape)
    tokens = batch.tokens / cp
    rows = routed_rows(shape, tokens, tp, ep) * np.where(ep > 1, facts.implementation.expert_imbalance, 1.0)
    local = moe.num_experts / np.asarray(ep, dtype=np.float64)
    width = moe.expert_ffn / np.where(ep > 1, 1, tp).astype(np.float64)
    gemms = mlp_gemms(shape, width, shape.expert_width)
    dtype = facts.implementation.training_dtype
    once, inputs, weights = linear_training(
        facts, rows / local, gemms, ("gate_up", "down"), dtype, batch.sustained, grouped=True
    )
    forward, backward = _of_all_experts(facts, once, local, 1.0), _of_all_experts(facts, inputs + weights, local, 2.0)
    passes = 2.0 * facts.training.moe_row_passes  # a pass reads a row and writes it
    permute = facts.device.memory_bound(
        rows * shape.expert_width * ACTIVATION_BYTES * passes, 2 * facts.training.moe_row_passes
    ).at_best(facts.training.basis("moe_row_passes"))
    small = unfused_activation(facts, shape, tokens, tp, ep)
    forward, backward = forward + small, backward + small * 2.0
    dense = [(np.full_like(width, moe.num_experts), np.full_like(width, shape.hidden))]
    if moe.shared_ffn:
        dense += mlp_gemms(shape, moe.shared_ffn / np.asarray(tp, dtype=np.float64))
    names = ("router", "gate_up", "down")[: len(dense)]
    beside = linear_training(facts, tokens, dense, names, "bf16", batch.sustained)
    if latent := latent_gemms(shape, width):  # each rank projects the tokens that it sends
        sent = tokens / np.where(ep > 1, tp, 1)
        projected = linear_training(facts, sent, latent, ("latent",) * len(latent), "bf16", batch.sustained)
        beside = (beside[0] + projected[0], beside[1] + projected[1], beside[2] + projected[2])
    return forward + permute + beside[0], backward + permute + beside[1] + beside[2]


def unfused_activation(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Priced:
    """The experts' activation where it is one kernel per tensor operation, forward.

    Parameters
    ----------
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp, ep
        Tensor- and expert-parallel degrees, ``[C]``.

    Returns
    -------
    Priced
        Seconds of one mixture, ``[C]``; nothing where the trainer has a kernel of it.

    Raises
    ------
    NoBasisError
        The model has no experts.
    """
    rows = routed_rows(shape, tokens, tp, ep) * np.where(ep > 1, facts.implementation.expert_imbalance, 1.0)
    if facts.implementation.expert_activation == "fused":
        return Priced.zero(rows.shape)
    width = moe_of(shape).expert_ffn / np.where(ep > 1, 1, tp).astype(np.float64)
    return facts.device.memory_bound(rows * width * UNFUSED_ACTIVATION_BYTES, UNFUSED_ACTIVATION_KERNELS)


def _of_all_experts(facts: Facts, each: Priced, local: Floats, passes: float) -> Priced:
    """A pass of all experts of a rank: one grouped product, or a loop in which the host paces small ones."""
    if facts.implementation.grouped_experts:
        return each * local
    pace_s = passes * facts.training.host_s_per_expert
    host = Priced.of(pace_s + 0.0 * each.s, facts.training.basis("host_s_per_expert"))
    return longer(each, host) * local


def experts_decode(
    facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints, dtype: str, shared_dtype: str
) -> Priced:
    """Routed and shared experts of one layer in an engine, from the measured MoE table.

    ``tp`` GPUs hold the layer: experts whole over ``ep`` groups of them, sliced inside a group. The router stays in
    bf16; shared experts are sliced over all ``tp``.

    Parameters
    ----------
    tokens
        Of a step in the whole engine, ``[C, S]``.
    tp, ep
        GPUs of the layer and groups of experts, the shape of ``tokens``.
    dtype, shared_dtype
        Number format of the routed and of the shared experts.

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
    Routing is the tables' power law, as engines see it; left-out points are 2 % off on the median. In steps of few
    tokens shared experts run on a stream of their own beside the routed ones: what is left of them is the read of their
    weights, since both wait for memory. SGLang folds DeepSeek's one shared expert into the routed kernel where experts
    are not spread, and ships configurations for that many in FP8 blocks; tables were timed with one expert fewer.
    """
    moe = moe_of(shape)
    t, e = np.asarray(tp, dtype=np.int64), np.asarray(ep, dtype=np.int64)
    key = (shape.expert_width, moe.expert_ffn, moe.experts_per_token, moe.num_experts, np.maximum(t // e, 1), e)
    routed = facts.device.moe(tokens, *key, dtype)
    if dtype == "fp8_block" and _folds_shared(facts, shape):
        routed = where(e == 1, facts.device.moe(tokens, *key, dtype, tuned=True), routed)
    if dtype == "fp8":
        # Block scaling is the same GEMM with more scales: where its kernel is the faster one, the other's was not
        # tuned for the shape, and an engine would not lose to it by as much.
        block = facts.device.moe(tokens, *key, "fp8_block")
        routed = where(block.s < routed.s, block.at_best(Basis.ANALYTIC), routed)
    ranks = t.astype(np.float64)
    router = [(np.full_like(ranks, moe.num_experts), np.full_like(ranks, shape.hidden))]
    routing = run_gemms(facts, tokens, router, "bf16")
    if not moe.shared_ffn:
        return routed + routing
    shared = run_gemms(facts, tokens, mlp_gemms(shape, moe.shared_ffn / ranks), shared_dtype)
    weights = 3.0 * shape.hidden * moe.shared_ffn / ranks * DTYPE_BYTES[shared_dtype]
    beside = longer(routed + facts.device.memory_bound(weights + 0.0 * tokens, 1.0), shared)
    return where(tokens <= facts.generation.shared_experts_beside, beside, routed + shared) + routing


def _folds_shared(facts: Facts, shape: ModelShape) -> bool:
    """Whether a mixture's one shared expert is one more of the routed ones, in kernels that the engine tuned for it."""
    moe = moe_of(shape)
    folds = moe.num_experts + 1 == facts.generation.tuned_experts and moe.shared_ffn == moe.expert_ffn
    return folds and shape.mla is not None and shape.sparse is None


def moe_of(shape: ModelShape) -> MoeShape:
    """A model's mixture.

    Returns
    -------
    MoeShape
        Its experts and how they are chosen.

    Raises
    ------
    NoBasisError
        The model has no experts.
    """
    if shape.moe is None:
        raise NoBasisError(f"{shape.name} has no experts")
    return shape.moe
