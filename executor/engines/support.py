"""What each engine can run of a plan; what it cannot is refused before anything starts, with the feature named."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from profiles.errors import InputError, NotYetError

if TYPE_CHECKING:
    from executor.run_config import EnginesSection
    from simulator.plan import GenerationLayout, ParallelLayout, Plan, RolePlan

PACKAGES = {"megatron-core": "megatron", "vllm": "vllm", "fsdp2": "torch", "torch-native": "torch"}


def require_engines_run(plan: Plan, engines: EnginesSection) -> None:
    """Raise ``NotYetError`` for a layout beyond the engines that shall run it, ``InputError`` for one not installed."""
    for name in (engines.training, engines.generation):
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise InputError(f"the run names the engine {name}, which is not installed: pip install 'hybridmap[gpu]'")
    for entry in plan.roles:
        for layout in (entry.training, entry.inference):
            if layout is not None:
                _require_layout(entry.role, layout, engines.training)
        if entry.generation is not None:
            _require_generation(entry, entry.generation, engines)


def _require_layout(role: str, layout: ParallelLayout, engine: str) -> None:
    if layout.cp != 1:
        raise NotYetError(f"{role}: cp {layout.cp} cannot run yet; Megatron-Core's needs Transformer Engine")
    if engine == "fsdp2":
        if layout.tp * layout.pp != 1:
            raise NotYetError(f"{role}: tp {layout.tp} pp {layout.pp} cannot run on fsdp2; it shards over dp alone")
        return
    if layout.zero_stage > 1:
        raise NotYetError(f"{role}: zero_stage {layout.zero_stage} cannot run on {engine}; 0 and 1 do, 3 on fsdp2")
    if engine == "megatron-core":
        if layout.ep > 1 and layout.pp > 1:
            raise NotYetError(f"{role}: ep {layout.ep} with pp {layout.pp} cannot run yet; ep needs pp 1")
        if layout.vpp > 1 and layout.pp == 1:
            raise InputError(f"{role}: vpp {layout.vpp} interleaves pipeline stages and the layout has one")
        return
    for name in ("ep", "vpp"):
        if getattr(layout, name) != 1:
            raise NotYetError(
                f"{role}: {name} {getattr(layout, name)} cannot run yet on {engine}; megatron-core has it"
            )


def _require_generation(entry: RolePlan, layout: GenerationLayout, engines: EnginesSection) -> None:
    for name in ("ep", "attention_dp"):
        if getattr(layout, name) != 1:
            raise NotYetError(f"{entry.role}: generation {name} {getattr(layout, name)} cannot run yet")
    base = entry.training
    if base is None or entry.separate_generation:
        return
    nests = base.tp % layout.tp == 0 and base.pp % layout.pp == 0
    if engines.embedded and not nests:
        raise NotYetError(
            f"{entry.role}: generation tp {layout.tp} pp {layout.pp} does not nest in training tp {base.tp} pp "
            f"{base.pp}; the general resharder runs with run.engines of megatron-core, fsdp2 or vllm"
        )
