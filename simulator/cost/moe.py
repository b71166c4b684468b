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
from simulator.cost import comms
from simulator.cost.gemm_sizes import latent_gemms, mlp_gemms
from simulator.cost.gemms import ACTIVATION_BYTES, linear_training, run_gemms

if TYPE_CHECKING:
    from profiles.models.layers import MoeShape
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints, Numbers
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
    moe = _moe(shape)
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
    moe = _moe(shape)
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
    width = _moe(shape).expert_ffn / np.where(ep > 1, 1, tp).astype(np.float64)
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
    moe = _moe(shape)
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
    moe = _moe(shape)
    folds = moe.num_experts + 1 == facts.generation.tuned_experts and moe.shared_ffn == moe.expert_ffn
    return folds and shape.mla is not None and shape.sparse is None


def dispatch_and_combine(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Priced:
    """All-to-all there and back of one layer forward (the backward pass moves the same again).

    Parameters
    ----------
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
    NCCL's all-to-all carries a copy for each chosen expert. DeepEP and HybridEP send a token once to each node that
    has some of its experts and hand it on inside: DeepEP at its measured time where a table has it, HybridEP, of which
    there is no table, at NCCL's rate for a copy to each rank. Where a token's experts come from a few groups, so do the
    nodes that it goes to (DeepSeek-V3 report, section 2.1.2: at most four).
    """
    moe = _moe(shape)
    built = facts.implementation
    rows = routed_rows(shape, tokens, tp, ep) * built.expert_imbalance
    row_bytes = shape.expert_width * ACTIVATION_BYTES
    if built.expert_dispatch == "all-to-all":
        return comms.strided(facts, "all_to_all", rows * row_bytes, ep, np.ones_like(ep)) * 2.0
    each = rows / moe.experts_per_token
    inside = comms.ranks_in_domain(facts, ep, 1)
    domains = -(-ep // inside)
    to_ranks, to_domains = _distinct(inside, moe.experts_per_token), domains_reached(moe, domains)
    away = each * to_domains * (1.0 - 1.0 / domains) * row_bytes
    there = comms.exchange_through_domains(facts, each * to_ranks * row_bytes, away, inside, domains)
    if built.expert_dispatch == "hybrid" or not facts.device.measures_expert_exchange:
        return there * 2.0
    measured = facts.device.moe_all_to_all(each, shape.expert_width, moe.experts_per_token, moe.num_experts, inside)
    return where(domains > 1, longer(measured, there * 2.0), measured)


def domains_reached(moe: MoeShape, domains: Ints) -> Floats:
    """NVLink domains that a token's experts lie in, on the mean of even routing.

    Parameters
    ----------
    moe
        The mixture, with the groups that its experts are chosen from.
    domains
        Equal domains that its experts are spread over, ``[C]``.

    Returns
    -------
    Floats
        Domains, ``[C]``; no more than the groups that a token chooses, where a group lies in one.
    """
    if moe.num_groups == 1:
        return _distinct(domains, moe.experts_per_token)
    n, groups = np.asarray(domains, dtype=np.float64), float(moe.num_groups)
    chosen = _distinct(np.asarray(moe.groups_per_token), moe.experts_per_token)  # groups with an expert of the token
    several = n * (1.0 - (1.0 - chosen / groups) ** (groups / n))  # groups in a domain
    shared = chosen * _distinct(np.maximum(n / groups, 1.0), moe.experts_per_token / chosen)  # domains of a group
    return np.asarray(np.where(n <= groups, several, shared))


def _distinct(places: Numbers, chosen: Floats | float) -> Floats:
    """How many of some equal places ``chosen`` experts lie in, on the mean of even routing."""
    n = np.asarray(places, dtype=np.float64)
    return n * (1.0 - (1.0 - 1.0 / n) ** chosen)


def _moe(shape: ModelShape) -> MoeShape:
    if shape.moe is None:
        raise NoBasisError(f"{shape.name} has no experts")
    return shape.moe
