"""Compute of one micro-batch through one layer, on one rank.

Symbols: ``tokens`` T of the micro-batch, ``h`` hidden, ``q``, ``kv`` attention widths, ``f`` feed-forward width,
``t`` tensor parallel. All arrays broadcast to ``[C]``.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Priced
from simulator.cost.gemm_sizes import attention_products, linear_gemms, mlp_gemms, mlp_width_per_token
from simulator.cost.gemms import ACTIVATION_BYTES, linear_training, run_gemms
from simulator.cost.mixers import attention_passes, linear_passes

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts, Kernels


SMALL_KERNELS_PER_LAYER = {"fused": 6, "fused-norms": 18, "eager": 40}
"""Launches of a layer's forward pass besides GEMMs and attention. Fused: norms (2), rotary, activation, residuals (2);
eager: each tensor operation of them; with fused norms those of rotary (12), activation (2) and residuals (2)."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A micro-batch on one rank: ``tokens`` in all, in ``sequences`` of ``length`` tokens each, shape ``[C]``.

    ``sustained`` says that it is part of minutes of dense work, during which the power limit holds GEMMs to the
    device's sustained rate. Prefills between decode steps are not: decode leaves most of the power unused.
    """

    tokens: Floats
    sequences: Floats
    length: Floats
    sustained: bool = True


@dataclass(frozen=True, eq=False)
class LayerTime:
    """One layer on one rank: input-gradient and weight-gradient GEMMs are apart, since other things overlap them."""

    forward: Priced
    backward_input: Priced
    backward_weight: Priced
    backward_other: Priced

    @property
    def backward(self) -> Priced:
        return self.backward_input + self.backward_weight + self.backward_other


def elementwise_bytes_per_token(shape: ModelShape, tp: Ints, kernels: Kernels = "fused") -> Floats:
    """Memory traffic of norms, residuals, rotary and activation in an average layer, forward, bytes per token.

    Fused: reads and writes of ``10 h + 2 (q + kv) + 3 f`` elements. Eager, one pass per tensor operation: a norm
    casts to fp32, squares, averages, scales and casts back (34 bytes per element), a residual is 6, rotary about
    20 per query and key element, the gated activation 10. Fused norms: those 4, the rest as in eager. All shared over
    ``t`` with sequence parallelism.

    Parameters
    ----------
    tp
        Tensor-parallel degree, ``[C]``.
    kernels
        ``fused``, ``fused-norms`` or ``eager``.

    Returns
    -------
    Floats
        Bytes per token, ``[C]``.
    """
    attention = shape.num_attention_layers / shape.num_layers if shape.num_mixer_free_layers else 1.0
    heads, ffn = attention * (shape.q_width + shape.kv_width), mlp_width_per_token(shape)
    blocks = shape.parts_per_layer / 2.0
    if kernels != "fused":
        norm = 34 if kernels == "eager" else 4
        num_bytes = (2 * norm + 2 * 6) * blocks * shape.hidden + 20 * heads + 10 * ffn
    else:
        num_bytes = ACTIVATION_BYTES * (10 * blocks * shape.hidden + 2 * heads + 3 * ffn)
    return num_bytes / np.asarray(tp, dtype=np.float64)


def elementwise(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints) -> Priced:
    """Time of the element-wise work of one layer's forward pass in the trainer.

    Parameters
    ----------
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.
    """
    kernels = facts.implementation.kernels
    num_bytes = elementwise_bytes_per_token(shape, tp, kernels) * tokens
    time = facts.device.memory_bound(num_bytes, SMALL_KERNELS_PER_LAYER[kernels])
    return facts.training.scaled(time, "element_wise_ratio")


def dense_layer(facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints, dtype: str = "bf16") -> LayerTime:
    """One dense layer forward and backward on one rank, without communication.

    Backward is the two transposed GEMMs of each forward GEMM from the same table, attention at the engine's
    backward ratio, and twice the element-wise traffic.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    tp, cp
        Tensor- and context-parallel degrees, ``[C]``.
    dtype
        Number format of the GEMMs.

    Returns
    -------
    LayerTime
        Seconds by part, ``[C]`` each.

    Notes
    -----
    FLOPs are the ``6 N`` rule's per GEMM (Kaplan et al. 2020) plus attention's; times come from tables, not from a
    utilisation. Attention backward has no table: 2.5 times the FLOPs (FlashAttention-2, Dao 2023) at lower efficiency,
    as ``attention_backward_ratio`` of the engine states.
    """
    tokens = batch.tokens / cp
    width = shape.ffn / np.asarray(tp, dtype=np.float64)
    return _layer(facts, shape, batch, tp, cp, tokens, mlp_gemms(shape, width), dtype)


def second_products(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, dtype: str) -> Priced:
    """Every second product of a dense layer once more: keys, output and up projection.

    Parameters
    ----------
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp
        Tensor-parallel degree, ``[C]``.
    dtype
        Number format of the GEMMs.

    Returns
    -------
    Priced
        Seconds, ``[C]``; nothing for mixtures, whose products are no plain ones.

    Notes
    -----
    Source: torchtitan's per-operator policy of activation checkpoints, which keeps the first of each two products.
    """
    if shape.moe is not None or shape.mla is not None:
        return Priced.zero(np.broadcast_shapes(tokens.shape, tp.shape))
    t, h = np.asarray(tp, dtype=np.float64), float(shape.hidden)
    wide = [(shape.kv_width / t, h + 0 * t), (h + 0 * t, shape.q_width / t), (shape.ffn / t, h + 0 * t)]
    return run_gemms(facts, tokens, wide, dtype, sustained=True)


def attention_layer(
    facts: Facts, shape: ModelShape, batch: Batch, tp: Ints, cp: Ints, dtype: str = "bf16"
) -> LayerTime:
    """The attention half and the element-wise work of an MoE layer; its experts are priced in ``moe``.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    tp, cp
        Tensor- and context-parallel degrees, ``[C]``.
    dtype
        Number format of the GEMMs.

    Returns
    -------
    LayerTime
        Seconds by part, ``[C]`` each.
    """
    return _layer(facts, shape, batch, tp, cp, batch.tokens / cp, [], dtype)


def _layer(
    facts: Facts,
    shape: ModelShape,
    batch: Batch,
    tp: Ints,
    cp: Ints,
    tokens: Floats,
    mlp: list[tuple[Floats, Floats]],
    dtype: str,
) -> LayerTime:
    attention, attention_backward = attention_passes(facts, shape, batch, tp, cp)
    small = elementwise(facts, shape, tokens, tp)
    kinds = attention_products(shape, tp)
    projections = kinds[0][0]
    mixer, ffn = (("qkv",) * (len(projections) - 1) + ("output",), ("gate_up", "down")[: len(mlp)])
    if shape.linear is None and len(kinds) == 1 and not shape.num_mixer_free_layers:
        gemms, names = projections + mlp, mixer + ffn
        forward, inputs, weights = linear_training(facts, tokens, gemms, names, dtype, batch.sustained)
    else:
        full = shape.num_attention_layers / shape.num_layers
        attention, attention_backward = attention * full, attention_backward * full
        parts = [*((sizes, mixer, full * part) for sizes, part in kinds), (mlp, ffn, 1.0)]
        if shape.linear is not None:
            linear, linear_backward = linear_passes(facts, shape, batch, tp, cp)
            attention, attention_backward = attention + linear, attention_backward + linear_backward
            products = linear_gemms(shape, tp)
            names = ("qkv", *("gate",) * (len(products) - 2), "output")
            parts.append((products, names, shape.num_linear_layers / shape.num_layers))
        each = [
            [time * weight for time in linear_training(facts, tokens, gemms, names, dtype, batch.sustained)]
            for gemms, names, weight in parts
            if gemms
        ]
        forward, inputs, weights = (functools.reduce(operator.add, times) for times in zip(*each, strict=True))
    return LayerTime(
        forward=forward + attention + small,
        backward_input=inputs,
        backward_weight=weights,
        backward_other=attention_backward + small * 2.0,
    )
