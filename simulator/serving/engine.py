"""A serving run on an engine of the profiles: its scheduler's rules, its cache and its step prices from ``Facts``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.units import DTYPE_BYTES
from simulator.cost import engine_layer, engine_memory
from simulator.cost.formats import weight_bytes
from simulator.plan.layouts import GenerationLayouts
from simulator.serving.loop import serve
from simulator.serving.prices import tabulate
from simulator.serving.run import Scheduler

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
    scheduler = scheduler_of(facts, shape, layout, precision)
    tokens = max(scheduler.token_budget, layout.max_num_seqs) + layout.max_num_seqs
    longest = load.input_tokens + load.output_tokens
    prices = tabulate(facts, shape, layouts, precision, tokens, longest, sustained=load.at_once)
    return serve(scheduler, load, prices)


def scheduler_of(facts: Facts, shape: ModelShape, layout: GenerationLayout, precision: str) -> Scheduler:
    """The rules that the engine's facts state, with the cache that ``layout`` leaves."""
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
        copies=layout.attention_dp,
    )


def kv_tokens(facts: Facts, shape: ModelShape, layout: GenerationLayout, precision: str) -> int:
    """Tokens that the cache of one replica holds: all attention copies together.

    What a sequence holds whatever its length (a linear mixer's state, a window's tokens) is set aside for every slot.
    """
    layouts = GenerationLayouts.of([layout])
    element = DTYPE_BYTES[engine_layer.kv_dtype(facts, precision)]
    layer = (
        engine_memory.kv_bytes_per_token(shape, layouts.attention_ranks, layouts.pp, element)[0]
        / shape.num_attention_layers
    )
    pool = layout.kv_cache_bytes or _own_pool_bytes(facts, shape, layouts, precision)
    slots = -(-layout.max_num_seqs // layout.attention_dp)
    whole, windowed = shape.num_full_layers, shape.num_sliding_layers
    if not facts.generation.window_frees_cache:
        whole, windowed = shape.num_attention_layers, 0
    state = float(engine_memory.state_bytes_per_sequence(shape, layouts.attention_ranks, layouts.pp)[0])
    pool -= slots * (layer * windowed * (shape.sliding_window or 0) + state)
    if not whole:
        return layout.max_num_seqs * shape.max_position
    return int(max(pool, 0.0) / (layer * whole)) * layout.attention_dp


def _own_pool_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> float:
    """Cache bytes of one GPU of an engine that has it for itself: a share of all memory, or of what weights leave."""
    engine, whole = facts.generation, float(facts.memory_capacity_bytes)
    kept = weight_bytes(shape, layouts, precision)
    if engine.share_holds_activations:
        kept += float(engine_memory.generation_working_bytes(facts, shape, layouts)[0])
    if engine.kv_share_of_free:
        return max(0.0, engine.kv_memory_share * (whole - engine.memory_reserve_bytes - kept))
    return max(0.0, engine.kv_memory_share * whole - engine.memory_reserve_bytes - kept)
