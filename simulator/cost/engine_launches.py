"""Operators that an engine's host launches for a layer of a step with prompts, which no CUDA graph holds.

The host's time for a layer is a fact of the engine's release, stated for a dense layer in 16 bits on several GPUs. A
layer of more operators takes as much longer: each is a call from Python, whatever it computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.cost.formats import QUANTIZED_ACTIVATIONS, formats_of

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

NORMS = 2
"""Each with the residual before it."""
ATTENTION = 3
"""Projection of queries, keys and values; the kernel with rotary and cache write; projection of the output."""
QK_NORMS = 2
LATENT_ATTENTION = 9
"""Projection down, two norms, projection of queries up, rotary, two absorbed products, the kernel, output."""
LINEAR_MIXER = 7
"""Two projections in, convolution, rates of decay, the mixer, gated norm, projection out."""
DENSE_MLP = 3
"""Gate and up, activation, down."""
ROUTED_EXPERTS = 3
"""Router, choice of the experts, the experts."""
LATENT_EXPERTS = 2
"""Projections to the experts' width and back."""
SHARED_EXPERTS = DENSE_MLP + 1
"""The sum with the routed ones on top."""
REDUCES = 2
"""Collectives after attention and after the MLP, where there are several ranks."""

PLAIN_LAYER = NORMS + ATTENTION + DENSE_MLP + REDUCES
"""Of the layer that engine files state the time of."""


def operators_of_layer(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> Floats:
    """Operators of an average layer over those of a plain one.

    Returns
    -------
    Floats
        Ratio, ``[C]``: 1 for a dense layer in 16 bits on several ranks.

    Notes
    -----
    Counted from the models' own code in TensorRT-LLM and vLLM. A product whose inputs no kernel before it quantises has
    one more. Operators differ in what they cost the host; all are taken as equal.
    """
    formats = formats_of(shape, precision)

    def quantised(dtype: str, products: int) -> int:
        apart = dtype in QUANTIZED_ACTIVATIONS and dtype not in facts.generation.fused_quantization
        return products * apart

    softmax = ATTENTION + QK_NORMS * shape.qk_norm + shape.attention_gate + quantised(formats.attention, 2)
    if shape.mla is not None:
        softmax = LATENT_ATTENTION + quantised(formats.attention, 3)
    mixer = softmax * shape.num_attention_layers
    mixer += (LINEAR_MIXER + quantised(formats.attention, 2)) * shape.num_linear_layers
    mlp = (DENSE_MLP + quantised(formats.dense_mlp, 2)) * shape.num_dense_layers
    if shape.moe is not None:
        shared = SHARED_EXPERTS + quantised(formats.shared_experts, 2) if shape.moe.shared_ffn else 0
        routed = ROUTED_EXPERTS + LATENT_EXPERTS * (shape.moe.latent is not None)
        mlp += (routed + shared) * shape.num_moe_layers
    parts = shape.parts_per_layer / 2.0  # each has one norm and one collective
    found = NORMS * parts + (mixer + mlp) / shape.num_layers
    return np.asarray((found + REDUCES * parts * (layouts.tp > 1)) / PLAIN_LAYER, dtype=np.float64)
