"""Mixture-of-experts layers to first order: routed experts as grouped GEMMs, all-to-all, shared experts.

Expert parallelism spreads the experts over ``ep`` GPUs, whole experts each; without it every rank holds its
tensor-parallel slice of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import NoBasisError
from simulator import comms
from simulator.compute import ACTIVATION_BYTES, Batch, mlp_gemms, run_gemms, run_gemms_backward

if TYPE_CHECKING:
    from profiles.model_shape import ModelShape, MoeShape
    from profiles.records import Floats, Ints, Priced
    from simulator.facts import Facts

PERMUTE_TRAFFIC = 4.0
"""Reads and writes of each routed row to sort tokens by expert and to bring them back weighted."""


def routed_rows(shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Floats:
    """Token copies that one GPU's experts work on; with expert parallelism each GPU brings its share of the tokens."""
    moe = _moe(shape)
    return np.asarray(tokens * moe.experts_per_token / np.where(ep > 1, tp, 1), dtype=np.float64)


def experts_training(
    facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints, ep: Ints
) -> tuple[Priced, Priced]:
    """Router, routed and shared experts of one layer, ``(forward, backward)`` on one rank, balanced routing.

    Each local expert is one GEMM of its mean number of rows; the table prices it at that size.
    """
    moe = _moe(shape)
    tokens = batch.tokens / cp
    rows = routed_rows(shape, tokens, tp, ep)
    local = moe.num_experts / np.asarray(ep, dtype=np.float64)
    width = moe.expert_ffn / np.where(ep > 1, 1, tp).astype(np.float64)
    gemms = mlp_gemms(shape, width)
    inputs, weights = run_gemms_backward(facts, rows / local, gemms)
    forward = run_gemms(facts, rows / local, gemms, "bf16", batch.sustained) * local
    backward = (inputs + weights) * local
    permute = facts.device.memory_bound(rows * shape.hidden * ACTIVATION_BYTES * PERMUTE_TRAFFIC, 8)
    dense = [(np.full_like(width, moe.num_experts), np.full_like(width, shape.hidden))]
    if moe.shared_ffn:
        dense += mlp_gemms(shape, moe.shared_ffn / np.asarray(tp, dtype=np.float64))
    dense_inputs, dense_weights = run_gemms_backward(facts, tokens, dense)
    forward = forward + permute + run_gemms(facts, tokens, dense, "bf16", batch.sustained)
    return forward, backward + permute + dense_inputs + dense_weights


def experts_decode(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, dtype: str) -> Priced:
    """Routed and shared experts of one layer in a decode step, sliced over ``tp``, from the measured MoE table."""
    moe = _moe(shape)
    t = np.asarray(tp, dtype=np.int64)
    routed = facts.device.moe(
        tokens, shape.hidden, moe.expert_ffn, moe.experts_per_token, moe.num_experts, t, np.ones_like(t), dtype
    )
    ranks = t.astype(np.float64)
    dense = [(np.full_like(ranks, moe.num_experts), np.full_like(ranks, shape.hidden))]
    if moe.shared_ffn:
        dense += mlp_gemms(shape, moe.shared_ffn / ranks)
    return routed + run_gemms(facts, tokens, dense, dtype)


def dispatch_and_combine(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Priced:
    """All-to-all there and back of one layer forward (the backward pass moves the same again)."""
    sent = routed_rows(shape, tokens, tp, ep) * shape.hidden * ACTIVATION_BYTES
    return comms.strided(facts, "all_to_all", sent, ep, np.ones_like(ep)) * 2.0


def _moe(shape: ModelShape) -> MoeShape:
    if shape.moe is None:
        raise NoBasisError(f"{shape.name} has no experts")
    return shape.moe
