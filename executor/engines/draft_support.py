"""Which drafts of a plan can run: what cannot is refused before anything starts, with what would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.registry import GENERATION
from profiles.errors import InputError, NotYetError

if TYPE_CHECKING:
    from executor.run_config import RunConfig
    from simulator.plan.plan import Plan

DRAFT = "draft"
"""Whose weights the model that drafts has in ``run.weights``."""
ELSE = "run a plan of 0 draft_tokens, or leave speculation out"


def require_drafts_run(plan: Plan, config: RunConfig, *, own_layers: bool, adapters: bool) -> str:
    """The folder of the model that drafts.

    ``own_layers``: the model's prediction layers (MTP) draft. ``adapters``: the model is trained by adapters.

    Raises ``NotYetError`` naming what cannot run, ``InputError`` where the draft has no weights.
    """
    if own_layers:
        raise NotYetError(
            "drafts by the model's own prediction layers (MTP) cannot run yet: no engine that trains here has these "
            "layers, so nobody could bring their weights. Name a small model as speculation.draft, hybridmap export "
            f"the plan --to verl, nemo-rl or slime, {ELSE}"
        )
    engine = GENERATION[config.engines.generation]
    if not engine.capabilities.drafts:
        able = ", ".join(name for name, entry in GENERATION.items() if entry.capabilities.drafts)
        raise NotYetError(f"drafts cannot run yet on {engine.name}; {able} drafts (run.engines.generation), or {ELSE}")
    if adapters:
        raise NotYetError(f"drafts cannot run yet beside adapters (implementation.lora_rank); {ELSE}")
    for entry in plan.roles:
        if entry.generation is not None and entry.generation.pp > 1:
            raise NotYetError(
                f"{entry.role}: drafts cannot run yet where generation has pp {entry.generation.pp}: the last stage "
                f"alone would know them; generate with pp 1, {ELSE}"
            )
    if DRAFT not in config.weights:
        raise InputError(
            "the plan drafts by a small model: run.weights needs an entry 'draft', a folder with config.json and "
            "*.safetensors"
        )
    return config.weights[DRAFT]
