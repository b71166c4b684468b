"""Selective recomputation in Megatron-Core: which of its modules compute again what a plan does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridmap.exports.export import Points
    from profiles.models.shape import ModelShape
    from simulator.plan.plan import ParallelLayout


def recomputed_modules(shape: ModelShape) -> list[str]:
    """Megatron-Core's modules for a model: it has one for the product inside experts, none for that of other layers.

    Source: ``recompute_modules`` of megatron/core/transformer/transformer_config.py, release 0.16.
    """
    return ["layernorm", "moe_act"] if _has_experts_alone(shape) else ["layernorm"]


def note_selective(role: str, layout: ParallelLayout, shape: ModelShape, out: Points) -> None:
    """Note what Megatron-Core does not compute again of a plan."""
    if layout.recompute == "selective" and not _has_experts_alone(shape):
        out.cannot(
            f"{role}.training.recompute",
            "the plan also computes the product inside the feed-forward block again; Megatron-Core has no such module "
            "for dense layers, so only the norms are, and the run keeps a little more than planned",
        )


def _has_experts_alone(shape: ModelShape) -> bool:
    return shape.num_moe_layers == shape.num_layers and shape.shared_expert_params == 0
