"""What handing weights over takes beside gathering them: each tensor by its name, quantised, through a bucket.

A transition on the same GPUs (``reshard``) and one to a dedicated pool (``weight_sync``) rest on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Priced
from profiles.units import DTYPE_BYTES
from simulator.cost import comms, parameters
from simulator.cost.formats import QUANTIZED_ACTIVATIONS
from simulator.plan.groups import BUCKET_ELEMENTS, LINK_BUCKET_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts, Layouts

QUANTISED_BYTES_PER_PARAM = 49.0
"""Read and written to quantise one weight by blocks with tensor operations, as NeMo-RL and verl do when an engine takes
weights in: to FP32 (2 + 4), blocks side by side (4 + 4), absolute values (4 + 4), their maxima (4), scaled (4 + 4),
clamped (4 + 4), cast (4 + 1), back in place (1 + 1). Counted, not measured."""
QUANTISED_KERNELS = 14
"""Of one tensor: those above, and the arithmetic of its scales."""


def nests(training: Layouts, generation: GenerationLayouts) -> Floats:
    """Whether each pair can use the strided groups of HybridFlow: ``t_g | t`` and ``p_g | p``.

    Parameters
    ----------
    training, generation
        Pairs of layouts, ``[C]``.

    Returns
    -------
    Floats
        0 or 1, ``[C]``.
    """
    return np.asarray(
        ((training.tp % generation.tp) == 0) & ((training.pp % generation.pp) == 0) & (training.cp == 1),
        dtype=np.float64,
    )


def shares_weights(facts: Facts, training: Layouts, generation: GenerationLayouts) -> NDArray[np.bool_]:
    """Whether generation runs from the training buffers: equal layouts, whole shards, an engine that can.

    Parameters
    ----------
    training, generation
        Pairs of layouts, ``[C]``.

    Returns
    -------
    NDArray[np.bool_]
        Booleans, ``[C]``.
    """
    alike = (training.tp == generation.tp) & (training.pp == generation.pp) & (training.zero_stage < 3)
    alike = alike & (generation.ep == training.ep) & (generation.attention_dp == 1)
    return np.asarray(alike & facts.generation.shares_weights, dtype=np.bool_)


def conversion_time(facts: Facts, handled: Floats) -> Priced:
    """Time of passing weights through the bucket into the engine's own tensors.

    Parameters
    ----------
    handled
        Bytes on each GPU, ``[C]``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.
    """
    return Priced.of(handled / facts.generation.reload_bytes_per_s, facts.generation.basis("reload_bytes_per_s"))


def sent_bytes_per_param(precision: str) -> float:
    """Bytes of a weight on its way: a trainer hands over bf16, an engine quantises what it has received.

    Parameters
    ----------
    precision
        Number format of the engine's weights.

    Returns
    -------
    float
        Bytes.
    """
    return max(DTYPE_BYTES[precision], DTYPE_BYTES["bf16"])


def quantisation_time(facts: Facts, shape: ModelShape, precision: str) -> Priced:
    """Time in which an engine's rank quantises new weights: all of each tensor, before it cuts its own part out.

    Parameters
    ----------
    precision
        Number format of the engine's weights.

    Returns
    -------
    Priced
        Seconds, a scalar; none for weights that stay as they come.

    Notes
    -----
    Analytic: ``QUANTISED_BYTES_PER_PARAM`` at the rate of memory-bound kernels. Embedding and head are not quantised.
    """
    if precision not in QUANTIZED_ACTIVATIONS:
        return Priced.zero(())
    params = shape.num_params - shape.embedding_params - shape.head_params
    work = facts.device.memory_bound(params * QUANTISED_BYTES_PER_PARAM, num_tensors(shape) * QUANTISED_KERNELS)
    return work.at_best(Basis.ASSUMED)


def conversion_bucket_bytes(
    facts: Facts, shape: ModelShape, training: Layouts, generation: GenerationLayouts, precision: str
) -> Floats:
    """Most bytes on a GPU in which weights change from the trainer's layout to the engine's.

    The executor's own bound: a bucket holds ``BUCKET_ELEMENTS``, but a gathered tensor is never cut. It has the size of
    its generation shard, a layer's for each of the training stages that meet in one of generation's. Zero where
    generation runs from the training buffers.

    Parameters
    ----------
    training, generation
        Pairs of layouts, ``[C]``.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    one = DTYPE_BYTES[precision]
    stages = np.maximum(training.pp // generation.pp, 1)
    widest = stages * parameters.widest_layer_tensor(shape)
    gathered = np.where(stages == 1, np.maximum(widest, shape.embedding_params), widest) / generation.tp
    nested = (nests(training, generation) > 0) & (training.zero_stage < 3)
    bucket = np.maximum(np.where(nested, gathered, 0.0), BUCKET_ELEMENTS)
    bucket = np.minimum(bucket, shape.num_params * training.num_gpus)  # a toy: no rank sends more to all others
    return np.where(shares_weights(facts, training, generation), 0.0, bucket * one)


def receiving_bucket_bytes(shape: ModelShape, generation: GenerationLayouts, precision: str) -> Floats:
    """Most bytes in which a GPU of a generation pool receives weights: two broadcasts, one of them on its way.

    Parameters
    ----------
    generation
        Engine layouts, ``[C]``.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    whole = shape.num_params * DTYPE_BYTES[precision]
    largest = max(shape.embedding_params, parameters.widest_layer_tensor(shape)) * DTYPE_BYTES[precision]
    return np.full(len(generation), 2.0 * min(whole, max(largest, LINK_BUCKET_BYTES)))


def export_time(facts: Facts, shape: ModelShape) -> Priced:
    """Host time of handing the model over tensor by tensor, in the naming of its checkpoint.

    Returns
    -------
    Priced
        Seconds, a scalar.
    """
    return facts.training.priced(export_s_per_tensor=num_tensors(shape))


def named_gather_time(facts: Facts, shape: ModelShape, training: Layouts, whole: float) -> Priced:
    """Time in which every rank receives the tensors of the checkpoint that ranks of other domains hold.

    A trainer that exports by name broadcasts each tensor from its pipeline stage and gathers it over tensor- and
    expert-parallel ranks, so the whole model goes through each GPU's share of the network.

    Parameters
    ----------
    training
        Training layouts, ``[C]``.
    whole
        Bytes of the model.

    Returns
    -------
    Priced
        Seconds, ``[C]``; none where a domain holds the whole model.

    Notes
    -----
    Megatron-Bridge's export, as its code does it; analytic. With the time of a tensor beside it, DeepSeek-V3's
    hand-over on 256 GPUs is within a fifth of what was published.
    """
    ranks = training.tp * training.pp * np.where(np.asarray(shape.moe is not None), training.ep, 1)
    ranks = np.minimum(ranks, training.num_gpus)
    domains = -(-ranks // facts.group.nvlink_domain_gpus)
    each = comms.domain_bandwidth(facts) / facts.group.nvlink_domain_gpus
    return Priced.of(whole * (1.0 - 1.0 / domains) / each, comms.network_basis(facts))


def num_tensors(shape: ModelShape) -> int:
    """Tensors of a Hugging Face checkpoint of this shape; a mixture of experts has three for each expert.

    Returns
    -------
    int
        Tensors.

    Notes
    -----
    Counted from the shape; equal to the published checkpoints that the tests name. Experts count one by one.
    """
    mlp = 3 if shape.gated_mlp else 2
    attention = 4 if shape.mla is None else 5 if shape.mla.q_lora_rank is None else 7  # latents have norms
    num = shape.num_layers * (attention + shape.norms_per_layer + (2 if shape.qk_norm else 0))
    num += shape.num_layers * 3 * shape.qkv_bias + (2 if shape.tied_embeddings else 3)  # embedding, last norm, head
    if shape.moe is None:
        return num + shape.num_layers * mlp
    per_moe = 1 + mlp * (shape.moe.num_experts + (1 if shape.moe.shared_ffn else 0))
    per_moe += shape.moe.shared_gate + shape.moe.router_bias + 2 * (shape.moe.latent is not None)
    return num + shape.num_dense_layers * mlp + shape.num_moe_layers * per_moe
