"""Can this plan run at all? Checks any plan, from any source; knows nothing of the solver."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InfeasibleError
from profiles.units import GIB, MIB
from simulator import legality
from simulator.cost import scoring_copy
from simulator.cost.kv_budget import longest_bytes
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, TokenBudget
from simulator.pool_memory import pool_memory

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import ParallelLayout, Plan, Pool, RolePlan


@dataclass(frozen=True)
class Violation:
    """One reason why a plan cannot run: ``rule`` names the kind, ``message`` has the numbers and the next step."""

    rule: str
    message: str


def check_plan(plan: Plan, facts: Facts) -> list[Violation]:
    """Every reason why ``plan`` cannot run on ``facts``; an empty list means it can."""
    facts = facts.drafting(plan.draft_tokens)
    found = _check_roles(plan, facts) + _check_pools(plan, facts)
    if found:
        return found
    for entry in plan.roles:
        found += _check_role_layouts(entry, plan, facts)
    return found or _check_memory(plan, facts)


def require_feasible(plan: Plan, facts: Facts) -> None:
    """Raise ``InfeasibleError`` with every violation if the plan cannot run."""
    found = check_plan(plan, facts)
    if found:
        raise InfeasibleError("this plan cannot run: " + "; ".join(v.message for v in found))


def _check_roles(plan: Plan, facts: Facts) -> list[Violation]:
    if plan.algorithm != facts.algorithm:
        return [Violation("roles", f"the plan is for {plan.algorithm}, the job runs {facts.algorithm}")]
    planned = [entry.role for entry in plan.roles]
    if sorted(planned) != sorted(facts.roles):
        return [Violation("roles", f"the plan places {sorted(planned)}, the job has {sorted(facts.roles)}")]
    pooled = sorted(role for pool in plan.pools for role in pool.roles)
    if pooled != sorted(planned):
        return [Violation("roles", f"the pools hold {pooled}, the plan lays out {sorted(planned)}")]
    return []


def _check_pools(plan: Plan, facts: Facts) -> list[Violation]:
    out = []
    names = [pool.name for pool in plan.pools]
    if len(set(names)) != len(names):
        out.append(Violation("pools", f"pool names must differ, got {names}"))
    for pool in plan.pools:
        if pool.device in facts.device_types:
            out += _check_pool_shape(pool, facts.on(pool.device))
        else:
            have = ", ".join(facts.device_types)
            out.append(Violation("pools", f"pool {pool.name} wants {pool.device}, the cluster has {have}"))
    out += _check_overlaps(plan)
    for entry in plan.roles:
        if entry.pool not in names:
            out.append(Violation("pools", f"{entry.role} is on pool '{entry.pool}', which does not exist"))
        elif entry.role not in plan.pool_of(entry.role).roles:
            out.append(Violation("pools", f"{entry.role} names pool '{entry.pool}', which does not list it"))
        if entry.generation_pool is not None and entry.generation_pool not in names:
            missing = f"{entry.role} generates on pool '{entry.generation_pool}', which does not exist"
            out.append(Violation("pools", missing))
    return out or _check_schedule(plan)


def _check_overlaps(plan: Plan) -> list[Violation]:
    """Pools of one device type take different GPUs of it."""
    out = []
    for device_type in dict.fromkeys(pool.device for pool in plan.pools):
        alike = sorted((p for p in plan.pools if p.device == device_type), key=lambda p: p.first_gpu)
        for first, second in itertools.pairwise(alike):
            if second.first_gpu < first.first_gpu + first.num_gpus:
                message = f"pools {first.name} and {second.name} both use GPU {second.first_gpu}"
                out.append(Violation("pools", message))
    return out


def _check_schedule(plan: Plan) -> list[Violation]:
    """An overlapped schedule trains and generates at once; a pool without roles must at least generate."""
    engines = {entry.generation_pool for entry in plan.roles if entry.separate_generation}
    idle = [pool.name for pool in plan.pools if not pool.roles and pool.name not in engines]
    out = [Violation("pools", f"pool {name} has no role and nothing generates on it") for name in idle]
    if plan.in_flight_updates and plan.schedule == "sync":
        out.append(Violation("schedule", "in-flight updates need a schedule that generates while it trains"))
    if plan.schedule != "sync" and not engines:
        message = (
            f"the schedule is {plan.schedule}, which generates while it trains; give the actor a dedicated "
            "generation_pool, or use schedule sync"
        )
        out.append(Violation("schedule", message))
    return out


def _check_pool_shape(pool: Pool, facts: Facts) -> list[Violation]:
    group, out = facts.group, []
    end = pool.first_gpu + pool.num_gpus
    if end > group.num_gpus:
        out.append(Violation("pools", f"pool {pool.name} ends at GPU {end}, the cluster has {group.num_gpus}"))
    node = group.gpus_per_node
    inside = pool.num_gpus < node and pool.first_gpu // node == (end - 1) // node
    if not inside and (pool.num_gpus % node or pool.first_gpu % node):
        message = f"pool {pool.name} is neither whole nodes of {node} GPUs nor inside one node"
        out.append(Violation("granularity", message))
    return out


def _check_role_layouts(entry: RolePlan, plan: Plan, facts: Facts) -> list[Violation]:
    kinds = {call.kind for call in facts.dataflow.calls_of(entry.role)}
    needed = {"training": "train" in kinds, "inference": "forward" in kinds, "generation": "generate" in kinds}
    out = []
    if "swap" in entry.offload and facts.dataflow.is_trained(entry.role):
        out.append(Violation("offload", f"{entry.role} is trained; only a frozen role can swap with a trained one"))
    for stage, wanted in needed.items():
        layout = getattr(entry, stage)
        if (layout is not None) != wanted:
            out.append(Violation("layouts", f"{entry.role} {'needs' if wanted else 'takes no'} {stage} layout"))
        elif layout is not None:
            pool = plan.generation_pool_of(entry.role) if stage == "generation" else plan.pool_of(entry.role)
            out += _check_degrees(entry.role, stage, layout, pool, facts.on(pool.device))
    for layout, samples in (
        (entry.training, facts.workload.minibatch_samples),
        (entry.inference, facts.workload.num_samples),
    ):
        if layout is not None:
            out += _check_parallel(entry.role, layout, samples, facts)
    if entry.training and entry.inference and _degrees(entry.training) != _degrees(entry.inference):
        out += _check_scoring_copy(entry.role, entry.training, entry.inference, facts)
    return out


def _check_scoring_copy(role: str, training: ParallelLayout, copy: ParallelLayout, facts: Facts) -> list[Violation]:
    """A copy in a layout of its own: the engine makes one, of whole weights, on GPUs and a width that training has."""
    both = f"{role} trains in {_degrees(training)} and scores in {_degrees(copy)} (dp, tp, pp, cp, ep, zero)"
    if not facts.training.scoring_layouts:
        return [
            Violation("layouts", f"{both}; with {facts.training.name} a trained role scores in its training layout")
        ]
    if not bool(scoring_copy.apart(Layouts.of([training]), Layouts.of([copy]))[0]) or copy.zero_stage:
        return [
            Violation("layouts", f"{both}; it scores in its training layout, or on a whole copy (zero 0) in another")
        ]
    if copy.num_gpus > training.num_gpus:
        more = f"{copy.num_gpus} GPUs to score and {training.num_gpus} that hold the weights"
        return [Violation("layouts", f"{both}; that is {more}: give the copy no more of them")]
    if copy.num_gpus // copy.dp > training.num_gpus // training.dp:
        wider = f"{copy.num_gpus // copy.dp} GPUs, training's has {training.num_gpus // training.dp}"
        return [Violation("layouts", f"{both}; a replica of the copy has {wider}: a copy is no wider")]
    return []


def _degrees(layout: ParallelLayout) -> tuple[int, ...]:
    return (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.zero_stage)


def _check_degrees(
    role: str, stage: str, layout: ParallelLayout | GenerationLayout, pool: Pool, facts: Facts
) -> list[Violation]:
    shape, x = facts.roles[role].shape, layout
    if isinstance(x, GenerationLayout):
        faults = [
            legality.engine_fault(shape, x.tp, x.pp, x.ep, x.attention_dp),
            legality.samples_fault(x.dp, facts.workload.num_samples, "replicas"),
        ]
    else:
        faults = [legality.tensor_fault(shape, x.tp), legality.stages_fault(shape.num_layers, x.pp)]
    if x.num_gpus > pool.num_gpus:
        faults.insert(0, f"{x.num_gpus} ranks on a pool of {pool.num_gpus} GPUs")
    return [Violation("degrees", f"{role} {stage}: {fault}") for fault in faults if fault]


def _check_parallel(role: str, layout: ParallelLayout, samples: int, facts: Facts) -> list[Violation]:
    shape, x = facts.roles[role].shape, layout
    faults = [
        legality.samples_fault(x.dp, samples, "data-parallel ranks"),
        legality.chunks_fault(shape.num_layers, x.pp, x.vpp, -(-samples // x.dp), x.micro_batch)
        if not isinstance(x.micro_batch, TokenBudget)
        else legality.budget_fault(x.vpp, facts.training, facts.implementation.packed_tokens),
        legality.experts_fault(shape, x.ep, x.dp * x.cp * x.tp),
    ]
    out = [Violation("degrees", f"{role}: {fault}") for fault in faults if fault]
    if x.zero_stage not in (0, *facts.training.zero_stages):
        out.append(Violation("engine", f"{role}: {facts.training.name} has no ZeRO stage {x.zero_stage}"))
    if x.vpp > 1 and not facts.training.interleaving:
        out.append(Violation("engine", f"{role}: {facts.training.name} runs no interleaved pipelines"))
    return out


def _check_memory(plan: Plan, facts: Facts) -> list[Violation]:
    out = []
    for entry in plan.roles:
        out += _check_kv(entry, facts)
    for pool in plan.pools:
        peak = pool_memory(plan, pool, facts)
        if peak.used_bytes > peak.capacity_bytes:
            classes = sorted(peak.classes.items(), key=lambda item: -item[1])
            parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in classes)
            need, have = (f"{size / GIB:.1f} GiB" for size in (peak.used_bytes, peak.capacity_bytes))
            over = f"{(peak.used_bytes - peak.capacity_bytes) / MIB:,.0f} MiB more than the " if need == have else ""
            message = (
                f"pool {pool.name} needs {over or f'{need} per GPU of '}{have}{' per GPU' if over else ''} during "
                f"{peak.peak_call} ({parts}, in GiB)"
            )
            out.append(Violation("memory", message))
    return out


def _check_kv(entry: RolePlan, facts: Facts) -> list[Violation]:
    """The KV budget that the plan states must hold the longest sequence; more of them wait or are preempted."""
    if entry.generation is None:
        return []
    most = int(facts.generation.max_num_seqs)
    if entry.generation.max_num_seqs > most:
        asked = f"{entry.role} generation: {entry.generation.max_num_seqs} sequences in flight"
        return [Violation("engine", f"{asked}, {facts.generation.name} takes {most}")]
    shape, work = facts.roles[entry.role].shape, facts.workload
    need = float(longest_bytes(facts, shape, GenerationLayouts.of([entry.generation]))[0])
    if entry.generation.kv_cache_bytes >= need:
        return []
    longest = work.engine_prompt_tokens + work.response.maximum
    message = (
        f"{entry.role} generation: one sequence of {longest:.0f} tokens needs {need / GIB:.2f} GiB of "
        f"KV cache per GPU, the plan gives {entry.generation.kv_cache_bytes / GIB:.2f} GiB"
    )
    return [Violation("memory", message)]
