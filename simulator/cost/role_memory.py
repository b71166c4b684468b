"""What a role needs in memory of one GPU, for every candidate: always, and while each of its calls runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory, generate, handover, kv_budget, memory, reshard, scoring_copy
from simulator.cost.role_layouts import RoleLayouts, calls_of, head_of
from simulator.cost.token_quantiles import RARE, TYPICAL

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call
    from simulator.plan.plan import Resharding


ENGINE_RESERVE = "engine reserve"
"""The class of what a generation engine's process holds beside weights, cache and workspace."""


@dataclass(frozen=True, eq=False)
class RoleMemory:
    """Bytes per GPU by class: ``resident`` always, ``transient`` per call key while it runs; each array ``[C]``."""

    resident: dict[str, Floats]
    transient: dict[str, dict[str, Floats]]

    @property
    def resident_bytes(self) -> Floats:
        """What stays; nothing of a role that waits on the host."""
        return memory.total(self.resident) if self.resident else np.zeros_like(self.transient_bytes)

    @property
    def transient_bytes(self) -> Floats:
        """The largest transient need over the role's calls."""
        return np.asarray(np.max([memory.total(c) for c in self.transient.values()], axis=0), dtype=np.float64)


# Long by the kinds of calls: what each needs beside what stays.
def role_memory(
    facts: Facts,
    role: str,
    layouts: RoleLayouts,
    resharding_method: Resharding = "hybridflow",
    level: float = TYPICAL,
) -> RoleMemory:
    """Resident and transient memory of a role for every candidate.

    Parameters
    ----------
    role
        Name in the dataflow.
    layouts
        Of the role, ``[C]``.
    resharding_method
        How a transition gathers.
    level
        Share of the micro-batches that need no more, as in ``memory.training_bytes``.

    Returns
    -------
    RoleMemory
        Bytes by class, ``[C]`` each.
    """
    spec, head, flow = facts.roles[role], head_of(role), facts.dataflow
    resident = memory.resident_bytes(facts, spec.shape, head, layouts.weights, flow.is_trained(role))
    if flow.generates(role) and layouts.generation is not None and not layouts.separate_generation:
        resident[ENGINE_RESERVE] = np.full(len(layouts.weights), facts.generation.memory_reserve_bytes)
    transient: dict[str, dict[str, Floats]] = {}
    for call in calls_of(facts, role, layouts):
        if call.kind == "train":
            assert layouts.training is not None, f"{call.key} needs a training layout"
            transient[call.key] = memory.training_bytes(facts, spec.shape, layouts.training, head == "lm", level)
        elif call.kind == "forward":
            assert layouts.inference is not None, f"{call.key} needs an inference layout"
            transient[call.key] = memory.inference_bytes(facts, spec.shape, layouts.inference, head == "lm", level)
            if layouts.training is not None and np.any(own := scoring_copy.apart(layouts.training, layouts.inference)):
                copy = scoring_copy.copy_bytes(facts, spec.shape, head, layouts.inference, transient[call.key])
                transient[call.key] |= {name: np.where(own, size, 0.0) for name, size in copy.items()}
        elif call.kind == "generate":
            transient[call.key] = _generation_memory(facts, role, layouts)
        elif resharding_method == "hybridflow":
            transient[call.key] = _conversion_memory(facts, role, layouts)
        else:  # Table 2: these gather the whole model on each GPU
            whole: float | Floats = reshard.transition_peak_bytes(
                resharding_method, spec.shape.num_params * DTYPE_BYTES[spec.precision], 1, 1
            )
            if facts.generation.gather_s_per_layer_per_gpu:  # some layers whole at once, the others' shards
                at_once = facts.generation.gathers_layers / spec.shape.num_layers
                whole = whole * at_once + _shard_bytes(facts, role, layouts) * (1.0 - at_once)
            transient[call.key] = {"gathered weights": whole + np.zeros(len(layouts.weights))}
            if facts.generation.keeps_workspace:
                transient[call.key] |= _kept_memory(facts, role, layouts)
    calls = calls_of(facts, role, layouts)
    return _with_offload(calls, RoleMemory(resident, transient), layouts, flow.is_trained(role))


def planned_bytes(facts: Facts, role: str, layouts: RoleLayouts) -> tuple[Floats, Floats]:
    """Resident and transient memory of a role that a search finds room for, as ``memory.planned_bytes`` counts.

    Parameters
    ----------
    role
        Name in the dataflow.
    layouts
        Of the role, ``[C]``.

    Returns
    -------
    tuple[Floats, Floats]
        Bytes, ``[C]`` each.
    """
    typical, rare = (role_memory(facts, role, layouts, level=level) for level in (TYPICAL, RARE))
    transient = memory.beyond_headroom(facts, typical.transient_bytes, rare.transient_bytes)
    return typical.resident_bytes, transient


def _conversion_memory(facts: Facts, role: str, layouts: RoleLayouts) -> dict[str, Floats]:
    """The transition: both shards and the conversion bucket, before there is a KV cache."""
    assert layouts.generation is not None, f"{role} generates"
    spec, engine, apart = facts.roles[role], layouts.generation, layouts.separate_generation
    weights = _shard_bytes(facts, role, layouts)
    if apart:
        bucket = handover.receiving_bucket_bytes(spec.shape, engine, spec.precision)
        return {"generation weights": weights, "conversion bucket": bucket}
    bucket = handover.conversion_bucket_bytes(facts, spec.shape, layouts.weights, engine, spec.precision)
    shared = handover.shares_weights(facts, layouts.weights, engine)
    return {"generation weights": np.where(shared, 0.0, weights), "conversion bucket": bucket}


def _kept_memory(facts: Facts, role: str, layouts: RoleLayouts) -> dict[str, Floats]:
    """Cache and workspace of an engine that gives neither back between calls."""
    spec, engine = facts.roles[role], layouts.generation
    assert engine is not None, f"{role} generates"
    kept = engine_memory.kept_workspace_bytes(facts, spec.shape, engine)
    return {"kv cache": kv_budget.stated_bytes(facts, spec.shape, engine), "generation workspace": kept}


def _shard_bytes(facts: Facts, role: str, layouts: RoleLayouts) -> Floats:
    """Bytes of the generation weights on one GPU."""
    assert layouts.generation is not None, f"{role} generates"
    spec = facts.roles[role]
    return engine_memory.generation_weight_bytes(spec.shape, layouts.generation, DTYPE_BYTES[spec.precision])


def _with_offload(calls: tuple[Call, ...], needs: RoleMemory, layouts: RoleLayouts, trained: bool) -> RoleMemory:
    """Offloaded states are on the GPU only while a call that uses them runs; gradients only in training.

    A frozen role that swaps takes the place of states that are counted already.
    """
    if not layouts.offload:
        return needs
    if "swap" in layouts.offload and not trained:
        return RoleMemory({}, needs.transient)
    moved = {name for name in (*layouts.offload, "gradients") if name in needs.resident}
    used = {"train": moved, "forward": moved & {"parameters"}, "generate": set(), "transition": moved & {"parameters"}}
    transient = {
        call.key: needs.transient.get(call.key, {})
        | {name: size for name, size in needs.resident.items() if name in used[call.kind]}  # in one order: sums round
        for call in calls
    }
    kept = {name: size for name, size in needs.resident.items() if name not in moved}
    return RoleMemory(kept, {key: classes for key, classes in transient.items() if classes})


def _generation_memory(facts: Facts, role: str, layouts: RoleLayouts) -> dict[str, Floats]:
    """Engine memory; the weights need no second copy where the engine runs from the training buffers."""
    spec, layout = facts.roles[role], layouts.generation
    assert layout is not None, f"{role} generates"
    classes = generate.generation_bytes(facts, spec.shape, layout, spec.precision, layouts.steady_steps)
    away = layouts.separate_generation or "parameters" in layouts.offload
    shared = handover.shares_weights(facts, layouts.weights, layout) & (not away)
    classes["generation weights"] = np.where(shared, 0.0, classes["generation weights"])
    return classes
