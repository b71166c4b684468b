"""A serving run on an engine of the profiles: its scheduler's rules, its cache and its step prices from ``Facts``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory
from simulator.cost.formats import kv_dtype, weight_bytes
from simulator.cost.speculation import checked_tokens, draft_weight_bytes
from simulator.plan.layouts import GenerationLayouts
from simulator.serving.run import Scheduler
from simulator.serving.serve import serve
from simulator.serving.tabulate import tabulate

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.plan import GenerationLayout
    from simulator.serving.run import Load, Served


def serve_on(facts: Facts, shape: ModelShape, layout: GenerationLayout, load: Load, precision: str = "bf16") -> Served:
    """Serve ``load`` on one replica of ``layout``; without a KV budget of the layout (0) the engine takes its own.

    Raises
    ------
    InfeasibleError
        The cache does not hold one request.
    """
    layouts = GenerationLayouts.of([layout])
    longest = load.input_tokens + load.output_tokens
    scheduler = scheduler_of(facts, shape, layout, precision, longest)
    decoding = layout.max_num_seqs * int(checked_tokens(facts))
    tokens = max(scheduler.token_budget, decoding) + decoding
    shortest = load.shortest(load.input_tokens)
    fit = scheduler.kv_tokens // (shortest + scheduler.tokens_of_a_sequence)
    most = max(1, min(layout.max_num_seqs, load.concurrency, fit))
    prices = tabulate(facts, shape, layouts, precision, tokens, longest, load.at_once, shortest, most)
    return serve(scheduler, load, prices)


def scheduler_of(facts: Facts, shape: ModelShape, layout: GenerationLayout, precision: str, longest: int) -> Scheduler:
    """The rules that the engine's facts state, with the cache that ``layout`` leaves; ``longest`` in tokens."""
    engine = facts.generation
    return Scheduler(
        mixes=engine.scheduler != "prefill-first",
        chunked=engine.scheduler != "in-flight",
        plans_ahead=engine.plans_ahead,
        admits_with_output=engine.admits_with_output,
        keeps_for_running=engine.keeps_for_running,
        max_num_seqs=layout.max_num_seqs,
        token_budget=int(engine.max_batched_tokens) * layout.attention_dp,
        kv_tokens=kv_tokens(facts, shape, layout, precision),
        tokens_of_a_sequence=tokens_of_a_sequence(facts, shape, layout, precision, longest),
        copies=layout.attention_dp,
    )


def kv_tokens(facts: Facts, shape: ModelShape, layout: GenerationLayout, precision: str) -> int:
    """Tokens that the cache of one replica, all attention copies, holds in layers that keep whole sequences."""
    layouts = GenerationLayouts.of([layout])
    pool = layout.kv_cache_bytes or _own_pool_bytes(facts, shape, layouts, precision)
    whole, _ = engine_memory.keeping_layers(facts, shape)
    if not whole:
        return layout.max_num_seqs * shape.max_position
    return int(pool / _whole_bytes(facts, shape, layouts, precision)) * layout.attention_dp


def tokens_of_a_sequence(
    facts: Facts, shape: ModelShape, layout: GenerationLayout, precision: str, longest: int
) -> int:
    """What a running sequence takes of ``kv_tokens`` whatever its length: a linear mixer's state, a window's tokens.

    Engines give it to those that run, not to every slot: pages of one pool are as large in all layers.
    """
    layouts = GenerationLayouts.of([layout])
    whole, windowed = engine_memory.keeping_layers(facts, shape)
    if not whole:
        return 0
    kept = _whole_bytes(facts, shape, layouts, precision)
    state = float(engine_memory.state_bytes_per_sequence(shape, layouts.attention_ranks, layouts.pp)[0])
    if windowed:
        share = engine_memory.windowed_share(shape)
        state += kept * share / (1.0 - share) * min(shape.sliding_window or 0, longest)
    return math.ceil(state / kept)


def _whole_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> float:
    """Cache of one token on one GPU in the layers that keep all of a sequence."""
    element = DTYPE_BYTES[kv_dtype(facts, precision)]
    held = float(engine_memory.kv_bytes_per_token(shape, layouts.attention_ranks, layouts.pp, element)[0])
    _, windowed = engine_memory.keeping_layers(facts, shape)
    return held * (1.0 - engine_memory.windowed_share(shape)) if windowed else held


def _own_pool_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> float:
    """Cache bytes of one GPU of an engine that has it for itself: a share of all memory, or of what weights leave."""
    engine, whole = facts.generation, float(facts.memory_capacity_bytes)
    kept = weight_bytes(shape, layouts, precision)
    kept += float(draft_weight_bytes(facts, shape, layouts, DTYPE_BYTES[precision])[0])
    if engine.share_holds_activations:
        kept += float(engine_memory.generation_working_bytes(facts, shape, layouts)[0])
    if engine.kv_share_of_free:
        return max(0.0, engine.kv_memory_share * (whole - engine.memory_reserve_bytes - kept))
    return max(0.0, engine.kv_memory_share * whole - engine.memory_reserve_bytes - kept)
