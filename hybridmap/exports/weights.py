"""The weights that a generation engine holds for itself, where the plan's engine would share the trainer's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from profiles.units import DTYPE_BYTES, GIB
from simulator.cost.engine_memory import generation_weight_bytes
from simulator.feasibility import layouts_of, memories_on

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


def utilization(source: Source) -> float:
    """Share of a GPU's memory that the engine fills: its weights, its workspace and the KV cache."""
    pool = source.plan.generation_pool_of("actor")
    used = sum(_engine_classes(source).values()) + own_weight_bytes(source)
    share = used / source.facts.on(pool.device).memory_capacity_bytes
    return min(math.ceil(share * 1e4) / 1e4, MOST_UTILIZATION)
