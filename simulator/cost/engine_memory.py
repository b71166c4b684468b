"""Memory of an engine on one GPU: its weights, the working set of its largest step, and its cache by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.cost.gemms import ACTIVATION_BYTES
from simulator.cost.parameters import generation_params, mlp_width

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Numbers
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts


def generation_weight_bytes(shape: ModelShape, layouts: GenerationLayouts, precision_bytes: float) -> Floats:
    """Bytes of the generation copy of the weights on one GPU.

    Parameters
    ----------
    precision_bytes
        Bytes of one weight.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    return generation_params(shape, layouts) * precision_bytes


def generation_working_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Activations of the largest step (a full prefill chunk), logits of the sampled sequences, and the sampler's own.

    No gradient is kept, so only one block's buffers live at a time: residual and input (2 h), and the wider of the
    attention's (query, key, value, output) and the feed-forward's (gate, up, product). What an engine's sampler has
    for every slot and word of the vocabulary each rank holds whole.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    inner = np.maximum(2 * shape.q_width + 2 * shape.kv_width, 3 * mlp_width(shape))
    width = 2 * shape.hidden + inner / layouts.tp
    logits = layouts.max_num_seqs * shape.vocab / layouts.tp * (2.0 + 4.0 + 4.0)
    sampler = layouts.max_num_seqs * shape.vocab * facts.generation.sampler_bytes_per_logit
    chunk: float | Floats = facts.generation.max_batched_tokens
    if facts.generation.static_batches:
        chunk = np.minimum(chunk, layouts.max_num_seqs * facts.workload.engine_prompt_tokens)
    return np.asarray(chunk * width * facts.activation_bytes + logits + sampler, dtype=np.float64)


def kv_bytes_per_token(shape: ModelShape, tp: Numbers, pp: Numbers, element_bytes: float = ACTIVATION_BYTES) -> Floats:
    """KV cache of one token on one GPU; heads (or the MLA latent) are replicated when ranks outnumber them.

    Parameters
    ----------
    tp, pp
        Ranks that share a sequence's heads, and stages; shapes broadcast.
    element_bytes
        Bytes of one element of the cache.

    Returns
    -------
    Floats
        Bytes, the broadcast shape.
    """
    ranks = np.asarray(tp, dtype=np.float64)
    if shape.mla is not None or not shape.num_attention_layers:
        per_layer = shape.kv_elements_per_token_per_layer + 0.0 * ranks
    else:
        index = shape.sparse.index_head_dim * shape.sparse.num_layers if shape.sparse else 0
        every = index + 0.0 * ranks
        for kind in shape.softmax_kinds:
            every = every + kind.layers * 2 * kind.head_dim * np.maximum(kind.num_kv_heads / ranks, 1.0)
        per_layer = every / shape.num_attention_layers
    return np.asarray(per_layer * np.ceil(shape.num_attention_layers / pp) * element_bytes, dtype=np.float64)


def state_bytes_per_sequence(shape: ModelShape, ranks: Numbers, pp: Numbers) -> Floats:
    """What linear mixers keep of one sequence on one GPU, whatever its length: their state, and the convolution's past.

    Parameters
    ----------
    ranks, pp
        Ranks that share a sequence's heads, and stages; shapes broadcast.

    Returns
    -------
    Floats
        Bytes, the broadcast shape; zero for a model without such layers.
    """
    if shape.linear is None:
        return np.zeros(np.broadcast_shapes(np.shape(ranks), np.shape(pp)))
    state = shape.linear.state_elements * shape.linear.state_element_bytes
    past = shape.linear.conv_elements * ACTIVATION_BYTES
    layers = np.ceil(shape.num_linear_layers / np.asarray(pp, dtype=np.float64))
    return np.asarray((state + past) * layers / ranks, dtype=np.float64)


def keeping_layers(facts: Facts, shape: ModelShape) -> tuple[int, int]:
    """Attention layers of which an engine keeps whole sequences, and of which it keeps the tokens of a window alone.

    Returns
    -------
    int, int
        Layers; all of the first kind where the engine frees nothing (``window_frees_cache``).
    """
    if not facts.generation.window_frees_cache:
        return shape.num_attention_layers, 0
    return shape.num_full_layers, shape.num_sliding_layers


def windowed_share(shape: ModelShape) -> float:
    """Share of the layers with a window in the cache of a token that all layers keep.

    Returns
    -------
    float
        By elements: layers may differ in their heads (Gemma-4).
    """
    if shape.mla is not None:
        return shape.num_sliding_layers / shape.num_attention_layers
    elements = [(kind.layers * kind.kv_width, kind.window) for kind in shape.softmax_kinds]
    return sum(n for n, window in elements if window) / sum(n for n, _ in elements)
