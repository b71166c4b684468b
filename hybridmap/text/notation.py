"""How plans and amounts are written for people: ``t8 p1 d2 z1 mb4``, ``71.2 GiB``, ``1,024``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mapper.problem import named_partition
from profiles.errors import InputError
from profiles.units import GIB
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.dataflow import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.facts import Facts
    from simulator.plan.dataflow import Stage
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool
    from simulator.plan.timeline import PoolMemory


def training_text(layout: ParallelLayout | None) -> str:
    """``t8 p1 d2 z1 mb4 full``; degrees of one that few use, and no recomputation, go unsaid."""
    if layout is None:
        return "-"
    recompute = [] if layout.recompute == "none" else [f"recompute {layout.recompute}"]
    return " ".join([*_degrees(layout), f"z{layout.zero_stage}", micro_batch_text(layout), *recompute])


def scoring_text(layout: ParallelLayout | None) -> str:
    """``t8 p1 d2 mb4``: a forward pass has no ZeRO stage worth naming unless its weights are sharded."""
    if layout is None:
        return "-"
    zero = [f"z{layout.zero_stage}"] if layout.zero_stage == 3 else []
    return " ".join([*_degrees(layout), *zero, micro_batch_text(layout)])


def micro_batch_text(layout: ParallelLayout) -> str:
    """``mb4``, or ``mb16384tok``: a budget of so many tokens."""
    budget = layout.token_budget
    return f"mb{layout.micro_batch}" if budget is None else f"mb{budget}tok"


def generation_text(layout: GenerationLayout | None) -> str:
    """``t2 d8 seqs 64``: eight replicas of two GPUs, 64 sequences at once in each."""
    if layout is None:
        return "-"
    rare = (("p", layout.pp), ("e", layout.ep), ("a", layout.attention_dp))
    spread = [f"{letter}{n}" for letter, n in rare if n > 1]
    return " ".join([f"t{layout.tp}", *spread, f"d{layout.dp}", f"seqs {layout.max_num_seqs}"])


def _degrees(layout: ParallelLayout) -> list[str]:
    rare = [f"{letter}{n}" for letter, n in (("v", layout.vpp), ("c", layout.cp), ("e", layout.ep)) if n > 1]
    return [f"t{layout.tp}", f"p{layout.pp}", f"d{layout.dp}", *rare]


def gpus_text(pool: Pool) -> str:
    """``0-15 (16)``."""
    last = pool.first_gpu + pool.num_gpus - 1
    span = f"{pool.first_gpu}-{last}" if pool.num_gpus > 1 else str(last)
    return f"{span} ({pool.num_gpus:,})"


def gib(num_bytes: float) -> str:
    """Bytes as ``71.2`` GiB, without the unit."""
    return f"{num_bytes / GIB:.1f}"


def memory_text(peak: PoolMemory) -> str:
    """What fills a pool's fullest GPU: ``73.1 of 75.2 GiB usable, 79.2 seen``, or ``73.1 of 79.2 GiB``: no headroom."""
    if peak.usable_bytes is None or peak.usable_bytes >= peak.capacity_bytes:
        return f"{gib(peak.used_bytes)} of {gib(peak.capacity_bytes)} GiB"
    return f"{gib(peak.used_bytes)} of {gib(peak.usable_bytes)} GiB usable, {gib(peak.capacity_bytes)} seen"


def about(seconds: float) -> str:
    """Seconds as an estimate carries them: ``134``, ``6.4``, ``0.52``."""
    return f"{seconds:,.0f}" if seconds >= 9.95 else f"{seconds:.1f}" if seconds >= 0.995 else f"{seconds:.2f}"


def percent(fraction: float) -> str:
    """``0.03`` as ``3 %``; small ones keep two digits after the point, but never read as more than they are."""
    value = fraction * 100
    return f"{value:.2f} %" if abs(value) < 1 else f"{value:.1f} %" if abs(value) < 10 else f"{value:,.0f} %"


def stages_text(stages: Mapping[Stage, float]) -> str:
    """Every stage that takes a tenth of a second at least, in the order of an iteration."""
    there = [name for name in STAGES if stages.get(name, 0) > 0 and f"{stages[name]:.1f}" != "0.0"]
    return " | ".join(f"{name.replace('_', ' ')} {stages[name]:,.1f} s" for name in there)


def difference_text(stages: Mapping[Stage, float], best: Mapping[Stage, float]) -> str:
    """In which stages a plan loses, and wins, against the best one; the three largest differences."""
    change = {name: stages.get(name, 0.0) - best.get(name, 0.0) for name in STAGES}
    largest = sorted((n for n in change if abs(change[n]) >= 0.05), key=lambda n: -abs(change[n]))[:3]
    return ", ".join(f"{name.replace('_', ' ')} {change[name]:+,.1f} s" for name in largest)


def placement_title(plan: Plan) -> str:
    """Who shares what, after ``colocate``, ``split`` or ``standalone`` where that is what it is; then the schedule."""
    sets = plan.placement
    if len(plan.gpus) > 1:
        names = re.findall(r"{[^}]*}", plan.placement)
        sets = " ".join(f"{name} on {pool.device}" for name, pool in zip(names, plan.pools, strict=True))
    if any(entry.separate_generation for entry in plan.roles):
        return f"{sets}, {plan.schedule}"
    roles = tuple(entry.role for entry in plan.roles)
    there = {frozenset(pool.roles) for pool in plan.pools}
    for name in ("colocate", "split", "standalone"):
        try:
            named = named_partition(plan.algorithm, roles, name)
        except InputError:  # these roles have no split
            continue
        if {frozenset(group) for group in named} == there:
            return f"{name} {sets}"
    return sets


def job_title(facts: Facts) -> str:
    """``PPO, 4 x llama-2-7b, 1,024 prompts of 1,024 + 1,024 tokens, on 16 x a100-80gb-sxm (2 nodes)``."""
    work = facts.workload
    by_model: dict[str, list[str]] = {}
    for role, spec in facts.roles.items():
        name = spec.shape.name + ("" if spec.precision == "bf16" else f" ({spec.precision})")
        by_model.setdefault(name, []).append(role)
    if len(by_model) == 1:
        models = f"{len(facts.roles)} x {next(iter(by_model))}"
    else:
        models = ", ".join(f"{model} ({', '.join(roles)})" for model, roles in by_model.items())
    response = f"{work.response.maximum:,}" if work.response.kind == "fixed" else _spread(facts)
    group_of = f" x {work.samples_per_prompt} samples" if work.samples_per_prompt > 1 else ""
    groups = [facts.on(kind).group for kind in facts.device_types]
    gpus = " + ".join(f"{g.num_gpus:,} x {g.device} ({g.nodes:,} node{'s' if g.nodes > 1 else ''})" for g in groups)
    algorithm = ALGORITHMS[facts.algorithm].title
    return (
        f"{algorithm}, {models}, {work.prompts:,} prompts{group_of} of {work.prompt_length:,} + {response} tokens, "
        f"on {gpus}"
    )


def _spread(facts: Facts) -> str:
    response = facts.workload.response
    return f"{response.mean:,.0f} (up to {response.maximum:,})"
