"""What each engine can run of a plan; what it cannot is refused before anything starts, with the feature named."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from executor.run_config import AS_PLANNED
from profiles.errors import InputError, NotYetError
from simulator.groups import Degrees

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.run_config import EnginesSection, RunConfig
    from executor.transition.regions import Layout
    from simulator.plan import GenerationLayout, ParallelLayout, Plan, RolePlan

PACKAGES = {"megatron-core": "megatron", "vllm": "vllm", "fsdp2": "torch", "torch-native": "torch"}


RUNNING = {"megatron-core": "megatron-core", "fsdp": "fsdp2", "vllm": "vllm"}
"""Engines that plans are priced for, by their names without versions, and what runs them."""


def resolved(config: RunConfig, planned: Mapping[str, str]) -> RunConfig:
    """``config`` with ``as-planned`` replaced by the job's engines, ``{"training": "megatron-core@0.16", ...}``.

    ``NotYetError`` for an engine that can be priced and not run.
    """
    found: dict[str, str] = {}
    for stage in ("training", "generation"):
        if getattr(config.engines, stage) != AS_PLANNED:
            continue
        name = planned[stage].split("@")[0]
        if name not in RUNNING:
            runs = ", ".join(RUNNING)
            raise NotYetError(f"the plan is for {stage} on {planned[stage]}, which cannot run yet; {runs} can")
        found[stage] = RUNNING[name]
    return config.model_copy(update={"engines": config.engines.model_copy(update=found)})


def require_engines_run(plan: Plan, engines: EnginesSection) -> None:
    """Raise ``NotYetError`` for a layout beyond the engines that shall run it, ``InputError`` for one not installed."""
    for name in (engines.training, engines.generation):
        if name == AS_PLANNED:
            raise InputError("engines as-planned need the job that the plan was made for: run it by 'hybridmap run'")
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise InputError(f"the run names the engine {name}, which is not installed: pip install 'hybridmap[gpu]'")
    for entry in plan.roles:
        for layout in (entry.training, entry.inference):
            if layout is not None:
                _require_layout(entry.role, layout, engines.training)
        if entry.generation is not None:
            _require_generation(entry, entry.generation, engines)
        if not engines.embedded:
            _require_no_embedded_feature(entry, engines)


def _require_no_embedded_feature(entry: RolePlan, engines: EnginesSection) -> None:
    """What only the torch-native engine has."""
    a, b = entry.training, entry.inference
    if a is not None and b is not None and (a.dp, a.tp, a.pp) != (b.dp, b.tp, b.pp):
        raise NotYetError(
            f"{entry.role}: another layout for scoring than for training cannot run yet on {engines.training}; "
            "torch-native has it"
        )
    if entry.offload:
        away = ", ".join(entry.offload)
        raise NotYetError(f"{entry.role}: offload of {away} cannot run yet on {engines.training}; torch-native has it")


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


def transition_note(plan: Plan, config: RunConfig) -> str | None:
    """What to tell a user whose actor changes layout the general way: why, and what it costs; else ``None``."""
    entry = next((entry for entry in plan.roles if entry.generation is not None), None)
    if entry is None or entry.training is None or entry.generation is None or entry.separate_generation:
        return None
    a, b = entry.training, entry.generation
    x = Degrees(a.pp, a.tp, a.dp, b.pp, b.tp)
    if x.nests or config.engines.embedded:
        return None
    from executor.engines.hybrid_spec import training_layout
    from executor.transition.architecture import read_architecture
    from executor.transition.native_layout import NativeLayout
    from executor.transition.transfers import plan_transfers
    from executor.transition.vllm_layout import VllmLayout

    arch = read_architecture(config.weights_of(entry.role))
    source = training_layout(config.engines.training, arch, x, a.vpp, a.ep)  # type: ignore[arg-type]
    native = NativeLayout(arch, x, "generation", transposed=False)
    target: Layout = VllmLayout(arch, x) if config.engines.generation == "vllm" else native
    moved = plan_transfers(arch, source, target)
    size = 2 if config.dtype == "bf16" else 4
    most = max(sum(moved.received_elements(rank).values()) for rank in range(x.num_ranks)) * size
    return (
        f"{entry.role}: generation tp {b.tp} pp {b.pp} does not nest in training tp {a.tp} pp {a.pp}, so weights go "
        f"through the general resharder: up to {most / 1e6:,.1f} MB a rank in each transition, and the training shard "
        "is kept besides"
    )
