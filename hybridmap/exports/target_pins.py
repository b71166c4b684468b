"""A target's rules as pins of a job: the degrees that its trainers have, who shares GPUs, what its engines are."""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from hybridmap.exports.follow import degrees_of
from hybridmap.job.load import job_from_document
from mapper.execution_mode import GENERATOR
from profiles.errors import InputError
from simulator.legality import stages_fault, tensor_fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridmap.job.job import Job
    from simulator.plan.plan import ParallelLayout, Plan
    from simulator.systems.targets import Target

Pins = dict[str, dict[str, Any]]
Degrees = dict[str, int]


def engines_of(job: Job, target: Target) -> tuple[Pins, ...]:
    """Pins of the engines that a system can start: experts on all ranks of one or on none, one after the other."""
    if target.any_experts or job.facts().roles["actor"].shape.moe is None:
        return ({},)
    role, layouts = _generates(job), [{"ep": 1}]
    if target.expert_engines:
        layouts += [{"tp": ranks, "ep": ranks} for ranks in (2, 4, 8)]
    return tuple({role: {"generation": layout}} for layout in layouts)


def _generates(job: Job) -> str:
    return GENERATOR if all(mode.dedicated_rollout for mode in job.request().modes) else "actor"


def merged_pins(first: Pins, second: Pins) -> Pins:
    """Pins of both, which do not contradict each other."""
    out = {role: {stage: dict(fixed) for stage, fixed in stages.items()} for role, stages in first.items()}
    for role, stages in second.items():
        for stage, fixed in stages.items():
            out.setdefault(role, {}).setdefault(stage, {}).update(fixed)
    return out


def pins_of(job: Job, target: Target) -> Pins:
    """The target's rules as pins of a job of one schedule."""
    pins = _of_roles(job, target.models, dict(target.degrees)) if target.degrees else {}
    engine: dict[str, Any] = {} if target.engine_pipeline else {"pp": 1}
    if target.max_num_seqs is not None:
        work, num_gpus = job.facts().workload, job.facts().group.num_gpus
        full = work.num_samples >= target.max_num_seqs * num_gpus  # else some engines have fewer, all at once
        engine["max_num_seqs"] = target.max_num_seqs if full else [*range(1, target.max_num_seqs + 1)]
    if not target.any_experts:
        engine["attention_dp"] = 1
    if engine:
        pins.setdefault(_generates(job), {})["generation"] = engine
    return pins


def one_layout(job: Job, target: Target, degrees: Degrees) -> Pins:
    """Pins of every model that has the same layout as the actor to these degrees."""
    return _of_roles(job, target.alike, degrees)


def _of_roles(job: Job, roles: tuple[str, ...], fixed: Degrees) -> Pins:
    flow = job.facts().dataflow
    return {
        role: {"training" if flow.is_trained(role) else "inference": dict(fixed)}
        for role in flow.roles
        if role in roles
    }


def layouts_in(plan: Plan, target: Target) -> Iterator[Degrees]:
    """The degrees of the models of a plan that are to have one layout, each once, the actor's first."""
    entries = sorted(plan.roles, key=lambda entry: entry.role != "actor")
    layouts = [entry.training or entry.inference for entry in entries if entry.role in target.alike]
    found = [_pinned(layout) for layout in layouts if layout is not None]
    yield from ({**each} for i, each in enumerate(found) if each not in found[:i])


def _pinned(layout: ParallelLayout) -> Degrees:
    return {name: degree for name, degree in degrees_of(layout).items() if name != "vpp"}


def shared_degrees(job: Job, target: Target) -> Iterator[Degrees]:
    """Tensor and pipeline parallelism that all models of one layout can have, the least cut first."""
    facts = job.facts()
    shapes = [spec.shape for role, spec in facts.roles.items() if role in target.alike]
    both = sorted(product((1, 2, 4, 8), (1, 2, 4, 8, 16)), key=lambda each: (each[0] * each[1], each[1]))
    for tp, pp in both:
        degrees = {"tp": tp, "pp": pp, "cp": 1}
        whole = not any(tensor_fault(shape, tp) or stages_fault(shape.num_layers, pp) for shape in shapes)
        allowed = all(degrees.get(name, degree) == degree for name, degree in target.degrees.items())
        if whole and allowed and tp <= facts.group.gpus_per_node and tp * pp <= facts.group.num_gpus:
            yield degrees


def with_pins(job: Job, target: Target, *more: Mapping[str, Mapping[str, Any]]) -> Job:
    """The job with rules beside its own pins; ``InputError`` where these contradict them."""
    merged: dict[str, Any] = {key: value for key, value in job.document["pin"].items() if value is not None}
    for pins in more:
        for role, stages in pins.items():
            for stage, fixed in stages.items():
                own = merged.setdefault(role, {}).setdefault(stage, {}) or {}
                both = {name: _in_both(own.get(name), value) for name, value in fixed.items()}
                clash = [name for name, values in both.items() if values == []]
                if clash:
                    raise InputError(
                        f"pin.{role}.{stage}.{clash[0]}: {own[clash[0]]} is pinned, and {target.name} "
                        f"{target.version} has {fixed[clash[0]]} there; take the pin out, or plan for another target"
                    )
                merged[role][stage] = {**own, **both}
    require, forbid = _sharing(job, target)
    share = merged.get("share") or {}
    merged["share"] = {
        "require": [*(share.get("require") or []), *require],
        "forbid": [*(share.get("forbid") or []), *forbid],
    }
    return job_from_document({**job.document, "pin": merged})


def _sharing(job: Job, target: Target) -> tuple[list[list[str]], list[list[str]]]:
    """Models that have to share GPUs, and pairs that may not."""
    models = [role for role in job.facts().dataflow.roles if role in target.models]
    if target.pairs and _generates(job) == GENERATOR:
        return [], [[*pair] for pair in combinations(models, 2) if frozenset(pair) not in target.pairs]
    return [models] if len(models) > 1 else [], []


def _in_both(own: Any, rule: Any) -> Any:
    """What a job's pin and a rule both allow; an empty list where that is nothing."""
    if own is None or own == rule:
        return rule
    values, allowed = (each if isinstance(each, list) else [each] for each in (own, rule))
    found = [value for value in values if value in allowed]
    return found[0] if len(found) == 1 else found
