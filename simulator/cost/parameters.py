"""Parameters of a model on one GPU: of its layers, its ends, its experts, its adapters, and of an engine's copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.models.shape import Head, ModelShape
    from profiles.records import Floats, Numbers
    from simulator.facts import Implementation
    from simulator.plan.layouts import GenerationLayouts, Layouts


MOE_BUFFERS = 3.0
"""Rows of the hidden width that an MoE layer keeps per routed token: permuted, sorted by expert, and the output before
it is combined."""


def params_per_gpu(shape: ModelShape, head: Head, tp: Numbers, pp: Numbers, ep: Numbers) -> Floats:
    """Parameters on the fullest GPU: its layers' share plus the larger end of the model (embedding or head).

    Parameters
    ----------
    tp, pp, ep
        Degrees, shapes broadcast.

    Returns
    -------
    Floats
        Parameters, the broadcast shape.

    Notes
    -----
    Exact for Hugging Face's tensors of the model; uneven pipelines hold ``ceil(L / p)`` layers on the fullest stage.
    """
    layers = np.ceil(shape.num_layers / pp)
    experts = shape.moe.num_experts * shape.expert_params if shape.moe else 0
    moe_layers = moe_layers_of_stage(shape, layers)
    dense_layers = np.minimum(layers - moe_layers, shape.num_dense_layers)
    mlps = shape.dense_params + shape.num_moe_layers * shape.moe_mlp_params
    shared = (shape.layer_params - mlps) / shape.num_layers
    dense = layers * shared + dense_layers * (shape.dense_params / max(shape.num_dense_layers, 1))
    if shape.moe:
        dense = dense + moe_layers * (shape.moe_mlp_params - experts - shape.latent_params)
    sliced_experts = moe_layers * (experts / np.where(ep > 1, ep, tp) + shape.latent_params)  # projections are whole
    last = shape.hidden if head == "scalar" else shape.embedding_params if shape.tied_embeddings else shape.head_params
    first = shape.embedding_params + shape.vision_params
    ends = np.where(pp > 1, np.maximum(first, last), shape.num_params_of(head) - shape.layer_params)
    whole = np.where(pp > 1, 0, shape.vision_params)
    return np.asarray((dense + ends + whole) / tp + sliced_experts, dtype=np.float64)


def moe_layers_of_stage(shape: ModelShape, layers: Numbers) -> Floats:
    """Mixtures of experts in the stage that has most of them.

    Parameters
    ----------
    layers
        Layers of a stage, any shape.

    Returns
    -------
    Floats
        Layers, the shape of ``layers``. Dense layers come first, or the kinds alternate evenly (Llama-4, Nemotron-H).
    """
    flags = shape.moe.moe_layers if shape.moe else ()
    if list(flags) == sorted(flags):
        return np.minimum(layers, float(shape.num_moe_layers))
    return np.asarray(np.ceil(layers * (shape.num_moe_layers / shape.num_layers)), dtype=np.float64)


def adapter_params(shape: ModelShape, built: Implementation, fused: bool, layouts: Layouts) -> Floats:
    """LoRA parameters on one GPU: ``rank (k + n)`` for each ``[k, n]`` linear of its layers, its experts' too.

    Parameters
    ----------
    built
        Rank of the adapters, and which linear layers have them.
    fused
        Whether queries, keys and values are one layer with one adapter, and gate and up another.

    Returns
    -------
    Floats
        Parameters, ``[C]``.

    Notes
    -----
    Source: LoRA (Hu et al. 2021); both factors are taken as cut, where some trainers keep one of them whole.
    """
    has, once = built.lora_targets, 1 if fused else 0
    h, gates = shape.hidden, 2 if shape.gated_mlp else 1
    heads = ((once or 3) * h + shape.q_width + 2 * shape.kv_width) * ("qkv" in has)
    heads += (shape.o_width + h) * ("output" in has)

    def mlp(width: float, h: int = h) -> float:
        return ((once or gates) * h + gates * width) * ("gate_up" in has) + (width + h) * ("down" in has)

    mlps, experts = mlp(shape.ffn) * shape.num_dense_layers, 0.0
    if shape.moe is not None:
        mlps += (mlp(shape.moe.shared_ffn) if shape.moe.shared_ffn else 0.0) * shape.num_moe_layers
        experts = mlp(shape.moe.expert_ffn, shape.expert_width) * shape.moe.num_experts * shape.num_moe_layers
    sliced = (heads + mlps / shape.num_layers) / layouts.tp
    whole = experts / shape.num_layers / np.where(layouts.ep > 1, layouts.ep, layouts.tp)
    return np.asarray(built.lora_rank * (sliced + whole) * np.ceil(shape.num_layers / layouts.pp), dtype=np.float64)


def generation_params(shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Parameters of an engine on one GPU: its attention copy's share of all but the experts, which lie on it once.

    Returns
    -------
    Floats
        Parameters, ``[C]``.
    """
    params = params_per_gpu(shape, "lm", layouts.attention_ranks, layouts.pp, np.ones(len(layouts)))
    if shape.moe is not None:
        layers = moe_layers_of_stage(shape, np.ceil(shape.num_layers / layouts.pp))
        experts = layers * shape.moe.num_experts * shape.expert_params
        params = params + (experts / layouts.tp - experts / layouts.attention_ranks)
    return params


def widest_layer_tensor(shape: ModelShape) -> int:
    """Parameters of the largest tensor of a layer that an engine holds as one: gate and up, its experts stacked.

    Returns
    -------
    int
        Parameters.
    """
    experts = shape.moe.num_experts * shape.moe.expert_ffn * shape.expert_width if shape.moe else 0
    return (2 if shape.gated_mlp else 1) * max(shape.hidden * shape.ffn if shape.num_dense_layers else 0, experts)


def mlp_width(shape: ModelShape) -> float:
    """Widest feed-forward a token goes through: the dense one, or its routed and shared experts and their buffers.

    Returns
    -------
    float
        Elements of a token.
    """
    if shape.moe is None:
        return float(shape.ffn)
    routed = shape.moe.experts_per_token * (shape.moe.expert_ffn + MOE_BUFFERS * shape.expert_width / 3)
    beside = shape.moe.shared_ffn + (shape.moe.latent or 0)
    return float(max(routed + beside, shape.ffn if shape.num_dense_layers else 0))
