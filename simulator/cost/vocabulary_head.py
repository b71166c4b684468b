"""Compute of one micro-batch through the vocabulary head and its loss, on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Priced
from simulator.cost.gemms import run_gemms, run_gemms_backward

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts

LOGIT_BYTES_FORWARD = 8.0
LOGIT_BYTES_BACKWARD = 10.0
"""Memory traffic per logit of cross-entropy or log-prob: read bf16, write and read fp32, reduce; the same and the
gradient back. 18 bytes in all, as modelling the Megatron loss kernels read by read gives."""

UNFUSED_LOGIT_BYTES_FORWARD = 54.0
UNFUSED_LOGIT_BYTES_BACKWARD = 26.0
"""The same where log-softmax is written in tensor operations, one pass over memory each: cast to fp32 (6), divide by
the temperature (8), maximum (4), subtract (8), exponential (8) and sum (4), subtract the logarithm (8), gather and
exponential to keep the softmax (8); backward: one-hot minus softmax (8), times
the gradient (8), mask (4), cast to bf16 (6)."""

IN_PLACE_LOGIT_BYTES_FORWARD = 2.0
IN_PLACE_LOGIT_BYTES_BACKWARD = 4.0
"""The same in one kernel each: read bf16 logits; read them and write their gradient over them."""

LOSS_TRAFFIC = {
    "unfused": (UNFUSED_LOGIT_BYTES_FORWARD, UNFUSED_LOGIT_BYTES_BACKWARD),
    "in-place": (IN_PLACE_LOGIT_BYTES_FORWARD, IN_PLACE_LOGIT_BYTES_BACKWARD),
}
"""Forward and backward traffic per logit of the loss heads that are not as ``LOGIT_BYTES_FORWARD`` says."""


FP32_GEMM_EFFICIENCY = 0.75
"""Share of the FP32 peak that large cuBLAS SGEMMs reach; a round figure of the vendor's own benchmarks."""


def vocabulary_head(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints) -> tuple[Priced, Priced]:
    """Vocabulary projection and cross-entropy (or log-prob) of ``tokens``, forward and backward.

    By implementation: the fused head computes its logits once more in the backward pass; the fp32 head runs its
    three GEMMs at the FP32 rate, of which large GEMMs reach ``FP32_GEMM_EFFICIENCY``.

    Parameters
    ----------
    tokens
        That go through the head on this rank, ``[C]``.
    tp
        Tensor-parallel degree, ``[C]``.

    Returns
    -------
    tuple[Priced, Priced]
        Seconds forward and backward, ``[C]`` each.

    Notes
    -----
    Bytes per logit are counted kernel by kernel (constants of this file); RL trainers that chunk their head come out
    too fast without ``loss_head`` set.
    """
    t = np.asarray(tp, dtype=np.float64)
    gemm = [(shape.vocab / t, shape.hidden + 0 * t)]
    logits = tokens * shape.vocab / t
    if facts.implementation.loss_head == "fp32":
        rate = facts.device.spec.peak("fp32") * FP32_GEMM_EFFICIENCY
        projection = Priced.of(2.0 * logits * shape.hidden / rate, Basis.ANALYTIC)
        inputs = weights = projection
    else:
        projection = run_gemms(facts, tokens, gemm, facts.plain_dtype, sustained=True)
        inputs, weights = run_gemms_backward(facts, tokens, gemm, facts.plain_dtype)
    gradients = inputs if facts.implementation.lora_rank else inputs + weights  # adapters leave the head frozen
    if facts.implementation.loss_head == "fused":
        gradients = gradients + projection
    there, back = LOSS_TRAFFIC.get(facts.implementation.loss_head, (LOGIT_BYTES_FORWARD, LOGIT_BYTES_BACKWARD))
    forward = projection + facts.device.memory_bound(logits * there, 3)
    return forward, gradients + facts.device.memory_bound(logits * back, 3)
