"""Tables of an engine's steps on one layout, read once from its prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.cost import engine_attention, engine_comms, engine_launches, engine_layer, speculation
from simulator.serving.prices import TabulatedPrices

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

POINTS_PER_OCTAVE = 8
"""Grid of every table; twice as many points move published rows by 0.2 % on average and 2 % at most."""

FULL_TOKENS = 4096
"""Prompt attention is read at the batch that fills a GPU: as many sequences as make this many tokens."""


# Long by what a table holds: a line for each.
def tabulate(
    facts: Facts,
    shape: ModelShape,
    layouts: GenerationLayouts,
    precision: str,
    most_tokens: int,
    most_context: int,
    sustained: bool = False,
    least_context: int = 1,
    most_decoding: int | None = None,
) -> TabulatedPrices:
    """Tables of one layout (``layouts`` of length one) up to ``most_tokens`` a step and ``most_context`` a sequence.

    ``sustained``: as in ``engine_layer.layer_work``. Attention of decodes takes most of the time here: it is priced for
    ``least_context`` tokens and more, of up to ``most_decoding`` sequences. The grid is the same whatever these are.
    """
    facts = facts.of_engine
    engine, layers = facts.generation, float(shape.num_layers)
    groups = float(layouts.pp[0])
    held = engine.captured_tokens * groups * float(layouts.attention_dp[0]) / speculation.checked_tokens(facts)
    launch = engine.launch_s_per_layer + engine.collective_launch_s * float(layouts.tp[0] > 1)
    operators = float(engine_launches.operators_of_layer(facts, shape, layouts, precision)[0])
    tokens, lengths = _grid(1, most_tokens), _grid(16, most_context)
    rows = np.maximum(tokens / groups, 1.0)[None, :]
    copies = layouts.attention_dp[:, None]
    copy = engine_layer.copy_work(facts, shape, layouts, rows / copies, precision, sustained)
    linear = copy if shape.moe is None else copy + engine_layer.expert_work(facts, shape, layouts, rows, precision)
    linear = (linear + engine_comms.layer_reduces(facts, shape, layouts, rows)) * layers
    linear = linear + engine_comms.pipeline_hops(facts, shape, layouts, rows)
    sequences, contexts = _grid(1, int(engine.max_num_seqs)), np.unique(np.concatenate([[1.0], lengths]))
    contexts = contexts[min(max(int(contexts.searchsorted(least_context)) - 1, 0), len(contexts) - 2) :]
    if most_decoding is not None:
        sequences = sequences[: max(int(sequences.searchsorted(most_decoding)) + 1, 2)]
    many, long = np.meshgrid(np.maximum(sequences / groups, 1.0), contexts, indexing="ij")
    decode = _decode_attention_s(facts, shape, layouts, many.reshape(1, -1), long.reshape(1, -1), precision)
    prefill = _prefill_attention_s(facts, shape, layouts, lengths, precision)
    checked = speculation.checked_tokens(facts)
    sampled = _grid(1, int(engine.max_num_seqs * checked))
    head = engine_layer.sampling_head(facts, shape, layouts, np.maximum(sampled / groups, 1.0)[None, :])
    launched = speculation.drafts_launched(facts)
    return TabulatedPrices(
        tokens,
        linear.s[0],
        copy.s[0] * layers,
        sequences,
        contexts,
        decode.reshape(many.shape),
        np.concatenate([[0.0], lengths]),
        np.concatenate([[0.0], prefill * layers / groups]),
        sampled,
        head.s[0],
        engine.host_s_per_step * (1 + launched),
        engine.host_s_per_sequence / float(layouts.attention_dp[0]),  # each attention copy has a scheduler of its own
        launch * (layers + speculation.draft_layers(facts)),
        engine.prefill_launch_s_per_layer * layers * operators,
        held or np.inf,
        engine.plans_ahead and not launched,
        int(copies[0, 0]) if shape.moe else 1,
        int(checked),
        speculation.tokens_per_step(facts),
    )


def _decode_attention_s(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, active: Floats, context: Floats, precision: str
) -> Floats:
    """What of a decode step depends on the context: attention of all layers, and the passes of a draft."""
    # As in a rollout's step: latent attention is bound by compute, so that each checked token has its own time.
    queries = active if shape.mla is None else active * speculation.checked_tokens(facts)
    attention = engine_attention.attention_of_decode(facts, shape, layouts, queries, context, precision)
    drafts = speculation.drafting(facts, shape, layouts, active, context, precision)
    return np.asarray(attention.s * float(shape.num_layers) + (drafts.compute + drafts.comm).s, dtype=np.float64)


def _prefill_attention_s(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, lengths: Floats, precision: str
) -> Floats:
    """Attention of a layer for one prompt of each length, in a step that prompts of that length fill."""
    filled = np.maximum(FULL_TOKENS / lengths, 1.0)[None, :]
    attention = engine_attention.attention_of_prefill(facts, shape, layouts, filled, lengths[None, :], precision)
    return np.asarray(attention.s[0] / filled[0], dtype=np.float64)


def _grid(least: int, most: int) -> Floats:
    """Whole numbers from ``least`` to ``most``: powers of two cut ``POINTS_PER_OCTAVE`` times, both ends included."""
    top = max(most, least + 1)
    octaves = np.log2(top / least)
    points = least * 2.0 ** np.linspace(0.0, octaves, int(np.ceil(octaves * POINTS_PER_OCTAVE)) + 1)
    return np.unique(np.concatenate([np.round(points), [float(top)]]))
