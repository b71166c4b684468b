"""What each engine can run of a plan; what it cannot is refused before anything starts, with the feature named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from executor.engines.entry import LayoutOptions
from executor.engines.registry import AS_PLANNED, GENERATION, TRAINING, is_in_place
from profiles.errors import InputError, NotYetError
from simulator.plan.groups import Degrees

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from executor.engines.entry import GenerationEntry, TrainingEntry
    from executor.run_config import EnginesSection, RunConfig
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, RolePlan


def resolved(config: RunConfig, planned: Mapping[str, str]) -> RunConfig:
    """``config`` with ``as-planned`` replaced by the job's engines, ``{"training": "megatron-core@0.16", ...}``.

    ``NotYetError`` for an engine that can be priced and not run.
    """
    engines = config.engines
    stages = [stage for stage in ("training", "generation") if getattr(engines, stage) == AS_PLANNED]
    found: dict[str, object] = {stage: _running(stage, planned[stage]) for stage in stages}
    of_roles = [role for role, name in engines.roles.items() if name == AS_PLANNED]
    if of_roles:
        training = _running("training", planned["training"])
        found["roles"] = {**engines.roles, **dict.fromkeys(of_roles, training)}
    return config.model_copy(update={"engines": engines.model_copy(update=found)})


def _running(stage: str, planned: str) -> str:
    """What runs the engine that a plan is priced for."""
    name = planned.split("@")[0]
    entries = TRAINING.values() if stage == "training" else GENERATION.values()
    running = {entry.priced_as: entry.name for entry in entries if entry.priced_as is not None}
    if name not in running:
        able = ", ".join([*running, "torch-native"])
        raise NotYetError(f"the plan is for {stage} on {planned}, which cannot run yet; {able} can (run.engines)")
    return running[name]


def require_engines_run(plan: Plan, engines: EnginesSection) -> None:
    """Raise ``NotYetError`` for a layout beyond the engines that shall run it.

    ``InputError`` for an engine that is not installed, or of a role that the plan has not.
    """
    has = [entry.role for entry in plan.roles]
    for role in engines.roles:
        if role not in has:
            raise InputError(f"run.engines.roles names {role}; the plan has {', '.join(has)}")
    _require_installed(TRAINING[_settled(name)] for name in (engines.training, *engines.roles.values()))
    _require_installed([GENERATION[_settled(engines.generation)]])
    for entry in plan.roles:
        engine = engines.training_of(entry.role)
        _require_calls(entry, engine)
        for layout in (entry.training, entry.inference):
            if layout is not None:
                _require_layout(entry.role, layout, engine)
        if entry.generation is not None:
            _require_generation(entry, entry.generation, engines)


def require_models_run(plan: Plan, config: RunConfig) -> None:
    """Raise ``NotYetError`` where a model has experts and an engine of its role cannot run them, or cannot sample so.

    ``InputError`` for a model that no weight map knows, or a ``config.json`` that cannot be read.
    """
    from executor.weights.architecture import read_architecture

    learning, generation = config.learning, GENERATION[config.engines.generation]
    if (learning.top_p < 1.0 or learning.top_k) and not generation.capabilities.cut_sampling:
        raise NotYetError(
            f"run.learning: top_p and top_k cannot run yet on {generation.name}, whose log-probs do not count what "
            "they leave out; torch-native and vllm do"
        )
    for entry in plan.roles:
        path = config.weights_of(entry.role)
        if config.function_of(entry.role) is not None or not Path(path).exists():
            continue  # machines with ranks may have what this one has not, and say so themselves if not
        arch = read_architecture(path)
        used: list[TrainingEntry | GenerationEntry] = []
        if entry.training is not None or entry.inference is not None:
            used.append(TRAINING[config.engines.training_of(entry.role)])
        if entry.generation is not None:
            used.append(GENERATION[config.engines.generation])
        if arch.num_experts:
            _require_mixture_runs(entry, arch.num_experts, used)


def _require_mixture_runs(entry: RolePlan, num_experts: int, used: Iterable[TrainingEntry | GenerationEntry]) -> None:
    for engine in used:
        if not engine.capabilities.mixtures:
            able = ", ".join(e.name for e in _entries() if e.capabilities.mixtures)
            raise NotYetError(f"{entry.role}: {num_experts} experts cannot run yet on {engine.name}; {able} run them")
    for layout in (entry.training, entry.inference):
        if layout is not None and layout.cp > 1 and layout.pp > 1:
            raise NotYetError(
                f"{entry.role}: {num_experts} experts with cp {layout.cp} and pp {layout.pp} cannot run yet; cp of a "
                "mixture needs pp 1"
            )


def _entries() -> list[TrainingEntry | GenerationEntry]:
    return [*TRAINING.values(), *GENERATION.values()]


def require_adapters_run(plan: Plan, engines: EnginesSection) -> None:
    """Raise ``NotYetError`` where a trained role cannot have adapters, or its generation cannot read them."""
    able = " or ".join(name for name, entry in TRAINING.items() if entry.capabilities.adapters)
    for entry in plan.roles:
        if entry.training is None:
            continue
        name, at = engines.training_of(entry.role), f"{entry.role}: adapters (implementation.lora_rank) cannot run yet"
        can = TRAINING[name].capabilities
        if not can.adapters:
            raise NotYetError(
                f"{at} on {name}; name {able} in run.engines, or train all weights (implementation.lora_rank: 0)"
            )
        if entry.training.tp > 1 and not can.adapters_tensor_parallel:
            raise NotYetError(f"{at} with tp {entry.training.tp} on {name}; torch-native has both")
        if entry.separate_generation:
            raise NotYetError(f"{at} where generation has a pool of its own; on the trainer's pool they do")
        if entry.generation is not None and not GENERATION[engines.generation].capabilities.adapters:
            raise NotYetError(f"{at} where {engines.generation} generates; torch-native does with them")


def _settled(name: str) -> str:
    if name == AS_PLANNED:
        raise InputError("engines as-planned need the job that the plan was made for: run it by 'hybridmap run'")
    return name


def _require_installed(entries: Iterable[TrainingEntry | GenerationEntry]) -> None:
    for entry in entries:
        if importlib.util.find_spec(entry.package) is None:
            raise InputError(
                f"the run names the engine {entry.name}, which is not installed: pip install '{entry.install}'"
            )


def _require_calls(entry: RolePlan, engine: str) -> None:
    can = TRAINING[engine].capabilities
    asked = {"training": entry.training and not can.trains, "scoring": entry.inference and not can.scores}
    asked["offload"] = bool(entry.offload) and not can.offload
    for what, is_lacking in asked.items():
        if is_lacking:
            raise NotYetError(f"{entry.role}: {what} cannot run on {engine}")


def _require_layout(role: str, layout: ParallelLayout, engine: str) -> None:
    can = TRAINING[engine].capabilities
    if layout.cp > 1 and not can.context_parallel:
        raise NotYetError(f"{role}: cp {layout.cp} cannot run yet on {engine}; megatron-core has it")
    if layout.pp > 1 and not can.pipeline_parallel:
        raise NotYetError(f"{role}: pp {layout.pp} cannot run on {engine}; it has dp and tp")
    if layout.zero_stage not in can.zero_stages:
        raise NotYetError(f"{role}: zero_stage {layout.zero_stage} cannot run on {engine}; 0 and 1 do, 3 on fsdp2")
    if layout.ep > 1 and not can.expert_parallel:
        raise NotYetError(f"{role}: ep {layout.ep} cannot run yet on {engine}; megatron-core has it")
    if layout.ep > 1 and layout.pp > 1 and not can.expert_parallel_pipeline:
        raise NotYetError(f"{role}: ep {layout.ep} with pp {layout.pp} cannot run yet on {engine}; ep needs pp 1")
    if layout.vpp > 1 and can.interleaved_pipeline and layout.pp == 1:
        raise InputError(f"{role}: vpp {layout.vpp} of {engine} interleaves pipeline stages and the layout has one")
    if layout.vpp > 1 and can.pipeline_parallel and not can.interleaved_pipeline:
        raise NotYetError(f"{role}: vpp {layout.vpp} cannot run yet on {engine}; megatron-core has it")


def _require_generation(entry: RolePlan, layout: GenerationLayout, engines: EnginesSection) -> None:
    can = GENERATION[engines.generation].capabilities
    if not can.generates:
        raise NotYetError(f"{entry.role}: generation cannot run on {engines.generation}")
    if layout.tp * layout.pp > 1 and not can.generation_parallel:
        raise NotYetError(
            f"{entry.role}: generation tp {layout.tp} pp {layout.pp} cannot run yet on {engines.generation}, whose "
            "replicas are one GPU; vllm has both"
        )
    allowed = {"ep": can.expert_parallel, "attention_dp": can.data_parallel_attention}
    for name, degree in {"ep": layout.ep, "attention_dp": layout.attention_dp}.items():
        if degree != 1 and not allowed[name]:
            raise NotYetError(f"{entry.role}: generation {name} {degree} cannot run yet on {engines.generation}")
    base = entry.training
    if base is None or entry.separate_generation:
        return
    nests = base.tp % layout.tp == 0 and base.pp % layout.pp == 0
    if not nests and is_in_place(engines.training_of(entry.role), engines.generation):
        raise NotYetError(
            f"{entry.role}: generation tp {layout.tp} pp {layout.pp} does not nest in training tp {base.tp} pp "
            f"{base.pp} on torch-native; the general resharder runs with run.engines of megatron-core, fsdp2 or vllm"
        )


def require_device(role: str, entry: TrainingEntry | GenerationEntry, device: str) -> None:
    """Raise ``InputError`` for an engine that runs on GPUs alone where ranks have none."""
    if entry.capabilities.needs_gpu and device == "cpu":
        raise InputError(f"{role}: {entry.name} needs GPUs, and the ranks of this run have none")


def transition_note(plan: Plan, config: RunConfig) -> str | None:
    """What to tell a user whose actor changes layout the general way: why, and what it costs; else ``None``."""
    entry = next((entry for entry in plan.roles if entry.generation is not None), None)
    if entry is None or entry.training is None or entry.generation is None or entry.separate_generation:
        return None
    a, b = entry.training, entry.generation
    degrees = Degrees(a.pp, a.tp, a.dp, b.pp, b.tp, a.cp)
    training, generation = TRAINING[config.engines.training_of(entry.role)], GENERATION[config.engines.generation]
    if degrees.nests or is_in_place(training.name, generation.name):
        return None
    from executor.weights.architecture import read_architecture
    from executor.weights.plan import plan_transfers

    arch = read_architecture(config.weights_of(entry.role))
    source = training.layout(arch, degrees, LayoutOptions(a.vpp, a.ep))
    target = generation.layout(arch, degrees)
    moved = plan_transfers(arch, source, target)
    size = 2 if config.dtype == "bf16" else 4
    most = max(sum(moved.received_elements(rank).values()) for rank in range(degrees.num_ranks)) * size
    return (
        f"{entry.role}: generation tp {b.tp} pp {b.pp} does not nest in training tp {a.tp} pp {a.pp}, so weights go "
        f"through the general resharder: up to {most / 1e6:,.1f} MB a rank in each transition, and the training shard "
        "is kept besides"
    )
