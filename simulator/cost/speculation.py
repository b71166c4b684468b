"""What speculative decoding adds to an engine: the draft's passes in every step, its weights and its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Priced
from simulator.cost import engine_attention, engine_comms, engine_layer, engine_memory
from simulator.cost.call_cost import Cost
from simulator.cost.gemms import run_gemms

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts


def checked_tokens(facts: Facts) -> float:
    """Tokens of a sequence that one step computes: the last one drawn, and the drafted ones after it.

    Returns
    -------
    float
        Tokens; 1 without speculation.
    """
    return 1.0 if facts.speculation is None else 1.0 + facts.speculation.drafted


def tokens_per_step(facts: Facts) -> float:
    """Tokens that a step gives each sequence on the mean.

    Returns
    -------
    float
        Tokens; 1 without speculation.
    """
    return 1.0 if facts.speculation is None else facts.speculation.tokens_per_step


def drafts_launched(facts: Facts) -> int:
    """Drafts of a step that the host sets up one by one, from tokens that it must have seen: it plans no step ahead.

    Returns
    -------
    int
        Drafts; 0 without speculation, and where they are part of the captured step.
    """
    return 0 if facts.speculation is None or facts.generation.drafts_in_graph else facts.speculation.drafted


def drafting(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, group: Floats, context: Floats, precision: str
) -> Cost:
    """The draft's passes of one step: one after the other, each with the head, on the layout of the model.

    Parameters
    ----------
    shape
        The model that generates.
    group, context
        Sequences of a pipeline group, and their mean tokens of cache, ``[C, S]``.
    precision
        Number format of the model's weights; a model that drafts is in bf16.

    Returns
    -------
    Cost
        Seconds, ``[C, S]``; zero without speculation.

    Notes
    -----
    Prediction layers (DeepSeek-V3, Gloeckle et al. 2024): two norms, a product of two hidden states to one, and one
    decoder layer like the model's mean one; the first pass computes all checked tokens, which fill its cache. Drafts as
    Leviathan et al. 2023. The one published pair of rollouts (Qwen3.5-9B, three tokens of MTP, eager vLLM) takes 0.49
    of the time without; priced it is 0.36: what eager drafting takes of the host has no measured basis.
    """
    plan = facts.speculation
    if plan is None:
        return Cost.of_compute(Priced.zero(group.shape))
    if plan.draft is None:
        first = _prediction_layer(facts, shape, layouts, group * checked_tokens(facts), group, context, precision)
        each = _prediction_layer(facts, shape, layouts, group, group, context, precision)
        return first + each * float(plan.drafted - 1)
    draft = plan.draft
    layer = engine_layer.layer_work(facts, draft, layouts, group, "bf16")
    layer = layer + engine_attention.attention_of_decode(facts, draft, layouts, group, context, "bf16")
    head = engine_layer.sampling_head(facts, draft, layouts, group)
    reduces = engine_comms.layer_reduces(facts, draft, layouts, group)
    one: Cost = Cost.serial(layer * float(draft.num_layers) + head, reduces * float(draft.num_layers))
    return one * float(plan.drafted)


def _prediction_layer(
    facts: Facts,
    shape: ModelShape,
    layouts: GenerationLayouts,
    rows: Floats,
    group: Floats,
    context: Floats,
    precision: str,
) -> Cost:
    """One pass of a prediction layer over ``rows`` tokens, and its head for one of each sequence."""
    ranks = np.broadcast_to(engine_attention.attention_ranks(layouts), rows.shape).astype(np.float64)
    joined = [(shape.hidden / ranks, 2.0 * shape.hidden + 0 * ranks)]
    work = engine_layer.layer_work(facts, shape, layouts, rows, precision)
    work = work + run_gemms(facts, rows / layouts.attention_dp[:, None], joined, facts.plain_dtype)
    work = work + engine_attention.attention_of_decode(facts, shape, layouts, group, context, precision)
    head = engine_layer.sampling_head(facts, shape, layouts, group)
    return Cost.serial(work + head, engine_comms.layer_reduces(facts, shape, layouts, rows))


def draft_layers(facts: Facts) -> float:
    """Layers that a step's drafts launch.

    Returns
    -------
    float
        Layers, all drafted tokens together.
    """
    plan = facts.speculation
    if plan is None:
        return 0.0
    return float(plan.drafted * (1 if plan.draft is None else plan.draft.num_layers))


def draft_weight_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision_bytes: float) -> Floats:
    """Bytes of the draft's weights on one GPU: one more mean layer of the model, or the draft model.

    Parameters
    ----------
    shape
        The model that generates.
    precision_bytes
        Bytes of one weight of the model; a model that drafts has two.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    plan = facts.speculation
    if plan is None:
        return np.zeros(len(layouts))
    if plan.draft is not None:
        return engine_memory.generation_weight_bytes(plan.draft, layouts, 2.0)
    ends = shape.embedding_params + shape.head_params
    joined = 2.0 * shape.hidden**2
    layer = (shape.num_params - ends) / shape.num_layers + joined
    return np.asarray(layer * precision_bytes / layouts.tp, dtype=np.float64)


def draft_kv_bytes_per_token(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Cache of one token in the draft's layers on one GPU.

    Parameters
    ----------
    shape
        The model that generates.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    plan = facts.speculation
    if plan is None:
        return np.zeros(len(layouts))
    model = shape if plan.draft is None else plan.draft
    whole = engine_memory.kv_bytes_per_token(model, layouts.attention_ranks, np.ones(len(layouts)), 2.0)
    return whole / max(model.num_attention_layers, 1) if plan.draft is None else whole
