"""The weights that a generation engine holds for itself, where the plan's engine would share the trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.units import DTYPE_BYTES
from simulator.feasibility import layouts_of
from simulator.memory import generation_weight_bytes

if TYPE_CHECKING:
    from hybridmap.exports.export import Source


def engine_weight_bytes(source: Source) -> float:
    """Bytes of the actor's generation weights on one GPU."""
    spec = source.facts.roles["actor"]
    layouts = layouts_of(source.actor, source.plan).generation
    assert layouts is not None, "the actor generates"
    return float(generation_weight_bytes(spec.shape, layouts, DTYPE_BYTES[spec.precision])[0])
