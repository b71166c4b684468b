"""The weights that a generation engine holds for itself, where the plan's engine would share the trainer's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hybridmap.exports.imported import cache_of_share
from profiles.units import DTYPE_BYTES, GIB
from simulator.cost.engine_memory import generation_weight_bytes
from simulator.cost.role_layouts import layouts_of
from simulator.pool_memory import memories_on

if TYPE_CHECKING:
    from hybridmap.exports.export import Points, Source

MOST_UTILIZATION = 0.95


def _engine_classes(source: Source) -> dict[str, float]:
    """What the engine needs on a GPU while it generates, by class, in bytes."""
    pool = source.plan.generation_pool_of("actor")
    classes = memories_on(source.plan, pool, source.facts.on(pool.device))["actor"].transient["generate_sequences"]
    return {name: float(size[0]) for name, size in classes.items()}


def own_weight_bytes(source: Source) -> float:
    """Bytes of the actor's generation weights on one GPU that the plan does not count; 0 where it does."""
    if _engine_classes(source).get("generation weights", 0.0):
        return 0.0
    spec = source.facts.roles["actor"]
    layouts = layouts_of(source.actor, source.plan).generation
    assert layouts is not None, "the actor generates"
    return float(generation_weight_bytes(spec.shape, layouts, DTYPE_BYTES[spec.precision])[0])


def note_own_weights(source: Source, out: Points, system: str) -> None:
    """Note that the system's engine keeps weights where the plan's generates from the trainer's."""
    extra = own_weight_bytes(source)
    if extra:
        out.cannot(
            "actor.generation.kv_cache_bytes",
            f"the plan's engine generates from the trainer's weights; {system}'s keeps a copy of its own, "
            f"{extra / GIB:.1f} GiB per GPU more than planned",
        )


def utilization(source: Source, static: bool = False) -> float:
    """Share of a GPU's memory that the engine fills: its weights, the KV cache, and unless ``static`` its workspace."""
    pool = source.plan.generation_pool_of("actor")
    classes = _engine_classes(source)
    used = sum(classes.values()) + own_weight_bytes(source)
    used -= classes.get("generation workspace", 0.0) if static else 0.0
    share = used / source.facts.on(pool.device).memory_capacity_bytes
    return min(math.floor(share * 1e5 + 1e-4) / 1e5, MOST_UTILIZATION)


def with_cache_of_its_share(source: Source, static: bool = False) -> Source:
    """The plan with the KV cache that an engine makes of the share of memory that is written for it."""
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    left = cache_of_share(source.facts.on(pool.device), layout, utilization(source, static), static)
    return source.with_entry("actor", generation=layout.model_copy(update={"kv_cache_bytes": left}))
