"""Kernels that the host launches for a layer of a trainer: what paces small micro-batches and mixtures of experts.

A layer takes as long as its kernels, or as long as the host needs to launch them, whichever is longer: PyTorch runs
ahead of the GPU only while the GPU has work. Launches are counted from the layer; the host's time for one is a fact of
the engine's release and of what else its process does. What CUDA graphs hold the host does not launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Priced
from simulator.cost.call_cost import Cost
from simulator.cost.formats import is_quantized
from simulator.cost.moe import UNFUSED_ACTIVATION_KERNELS

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts

ATTENTION = 22
"""Norm (2), projections (2 modules of 3), rotary (4), the kernel (3), residual, views that copy (6)."""
DENSE_MLP = 10
"""Norm (2), two modules of 3, activation, residual."""
ROUTER = 30
"""Logits in FP32 (4), scores, top-k, masks and maps over experts, auxiliary loss and its statistics."""
PREPROCESS = 30
"""Counts by expert, rank and chunk, splits of the exchange, their copies to the host and the wait for them."""
EXCHANGE = {"all-to-all": 30, "deepep": 20, "hybrid": 16}
"""Permutation, exchange, sorting by local expert, there and back. Permutations are fused kernels, as the recipes of
NeMo-RL and Megatron-Bridge have them (``moe_permute_fusion``); DeepEP and HybridEP do most of it in one."""
EXPERTS = 12
"""Grouped modules, activation weighted by scores, cast of the scores."""
EACH_EXPERT = 2
"""A product for each expert of the rank and of the two projections: cuBLAS is called for one after the other, but for
engines with ``grouped_kernels``."""
SHARED_EXPERTS = 10
LATENT_EXPERTS = 6
"""Two modules of 3: the projections to the experts' width and back."""
QUANTISED = 4
"""Scale, cast, transpose and amax of a product's operand in eight or four bits; experts' in one kernel for all."""
COLLECTIVE = 3
"""A gather or scatter of sequence parallelism with its events."""
RING_STEP = 8
"""Exchange of keys and values, attention of the chunk and correction, for each step of context parallelism."""
BACKWARD = 1.4
"""Launches of a backward pass over those forward. Products are two for one, routing's maps and counts have none, other
kernels have one; each weight's gradient is added to the sum of the step by a kernel of its own. Of Qwen3-30B-A3B's 156
launches on eight ranks the count is 220. The stages of the rows that the time of a launch is fitted on agree: forward
passes alone take 0.4 of a training pass."""
EAGER = {"fused": 0, "fused-norms": 12, "eager": 40}
"""What one kernel per tensor operation adds in norms, rotary and activation."""


def launches_of_layer(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Kernels that the host launches for the forward pass of an average layer.

    Returns
    -------
    Floats
        Launches, ``[C]``; a backward pass has ``BACKWARD`` times as many.

    Notes
    -----
    Counted in Megatron-Core's layers, module by module; a count is off by a third easily, which the time of one launch,
    fitted beside it, takes up. Other trainers' layers do the same work and are taken as equal; what they launch for one
    expert after the other is ``host_s_per_expert``.
    """
    built = facts.implementation
    if "iteration" in built.captured:
        return np.zeros(len(layouts))
    quantized = is_quantized(built.training_dtype)
    attention = (
        ATTENTION
        + EAGER[built.kernels]
        + (2 * QUANTISED if quantized else 0)
        + np.where(layouts.tp > 1, 2 * COLLECTIVE, 0)
    )
    attention = attention + np.where(layouts.cp > 1, RING_STEP * layouts.cp, 0)
    attention = attention * (0.0 if "attention" in built.captured else 1.0)
    attention = attention * (1.0 - shape.num_mixer_free_layers / shape.num_layers)
    dense = DENSE_MLP + (2 * QUANTISED if quantized else 0) + np.where(layouts.tp > 1, 2 * COLLECTIVE, 0)
    found = attention + dense * (shape.num_dense_layers / shape.num_layers)
    if shape.moe is not None:
        found = found + _of_experts(facts, shape, layouts) * (shape.num_moe_layers / shape.num_layers)
    return np.asarray(found, dtype=np.float64)


def _of_experts(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Launches of the experts' half of a layer, forward, ``[C]``."""
    assert shape.moe is not None
    built = facts.implementation
    local = shape.moe.num_experts / np.asarray(layouts.ep, dtype=np.float64)
    apart = 0 if facts.training.grouped_kernels else EACH_EXPERT * local
    found = EXPERTS + apart + (SHARED_EXPERTS if shape.moe.shared_ffn else 0)
    found = found + (0 if shape.moe.latent is None else LATENT_EXPERTS)
    if built.expert_activation == "unfused":
        found = found + UNFUSED_ACTIVATION_KERNELS + local  # biases of the experts, too
    found = found + (2 * QUANTISED if is_quantized(built.training_dtype) else 0)
    found = found + (0 if "router" in built.captured else ROUTER)
    found = found + (0 if "preprocess" in built.captured else PREPROCESS)
    return np.asarray(found + np.where(layouts.ep > 1, EXCHANGE[built.expert_dispatch], 10), dtype=np.float64)


def paced(facts: Facts, cost: Cost, launches: Floats) -> Cost:
    """``cost`` of a pass through a layer, and what it waits for the host.

    Parameters
    ----------
    cost
        Of the layer on the GPU, ``[C]``.
    launches
        Of the pass, ``[C]``.

    Returns
    -------
    Cost
        The longer of both, ``[C]``; their sum for a CPU, which launches beside its work.
    """
    each_s = facts.training.host_s_per_launch
    if not each_s:
        return cost
    host = launches * each_s
    waiting = host if facts.device.spec.kind == "cpu" else np.maximum(host - cost.time.s, 0.0)
    return cost + Cost.of_compute(Priced.of(waiting, facts.training.basis("host_s_per_launch")))
