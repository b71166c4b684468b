"""Plans for a target system: the search within what it allows (``target_rules``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Point, Source
from hybridmap.exports.follow import degrees_of
from hybridmap.exports.imported import newest
from hybridmap.exports.target_rules import TARGETS, Target
from hybridmap.job.load import job_from_document
from mapper.execution_mode import GENERATOR
from profiles.errors import InputError, UnknownNameError
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridmap.job.job import Job
    from mapper.result import Result
    from simulator.plan.plan import ParallelLayout

Pins = dict[str, dict[str, Any]]
OWN = "hybridmap"
"""Our own executor, which runs whatever is planned."""
RELAXED = "the bound is that of a search which leaves out that all models of a process have one layout"
ONE_KIND = "planned on the {} alone: workers are put on any GPU that is free, whatever its kind"
LIMITED = {"tp": 1, "pp": 1, "ep": 1}
"""What FSDP leaves of a layout: data and sequence parallelism."""


@dataclass(frozen=True)
class Planned:
    """The best plan found that a system runs as it is written.

    ``result`` has the plan as the system runs it, and a bound that holds under its rules; ``job`` is what it then runs,
    and ``points`` say where that is not what the job asked for.
    """

    result: Result
    job: Job
    points: tuple[Point, ...]


def target_of(text: str) -> Target:
    """A target by name, with or without its release (``verl@0.9/fsdp``); ``InputError`` names those that there are."""
    system, _, trainer = text.partition("/")
    name, _, release = system.partition("@")
    found = TARGETS.get(f"{name}/{trainer}" if trainer else name)
    if found is None:
        raise UnknownNameError("target", text, (*TARGETS, OWN))
    if release and not f"{found.version}.".startswith(f"{release}."):
        raise InputError(f"target {text}: the rules here are those of {name} {found.version}")
    return found


def planned(job: Job, target: str | None, search: Callable[[Job], Result]) -> tuple[Result, Job, list[str]]:
    """The best plan of a job for the target that is named, else for the job's own, else for any.

    With the plan comes the job that is then run, and what is to be said of both. Errors as in ``target_of`` and
    ``plan_for``.
    """
    name = target or job.target
    if name is None or name == OWN:
        return search(job), job, []
    system = target_of(name)
    found = plan_for(job, system, search)
    rules = [f"{rule.text} ({rule.source})" for rule in system.rules]
    changed = [f"{point.place}: {point.text}" for point in found.points]
    held = [f"planned for {system.name}, release {system.version}: {'; '.join(rules)}", *changed]
    return found.result, job_from_document({**found.job.document, "target": name}), held


def plan_for(job: Job, target: Target, search: Callable[[Job], Result]) -> Planned:
    """The best plan of a job that a system runs as it is written.

    Parameters
    ----------
    job
        What is to run; its training engine is the system's.
    target
        The system.
    search
        Finds the best plan of a job.

    Raises
    ------
    InputError
        The job's pins contradict the rules, or the system runs nothing near what fits.
    """
    found, bounds, refusal = list[Planned](), list[float](), InputError("")
    for kind in _of_one_kind(_as_trained_there(_with_engines(job, target), target)):
        for engine in engines_of(kind, target):
            try:
                bounds.append(_plan_with(kind, target, search, engine, found))
            except InputError as error:
                refusal = error
    if not found:
        raise refusal
    best = min(found, key=lambda planned: planned.result.iteration_s)
    if len(job.cluster) > 1:
        best = replace(best, points=(Point("cluster", ONE_KIND.format(best.job.cluster[0].device)), *best.points))
    return replace(best, result=_proven(best.result, min(bounds)))


def _of_one_kind(job: Job) -> tuple[Job, ...]:
    """The job on each kind of its GPUs: no system here is told which kind a pool has."""
    clusters = job.document["cluster"]
    if len(clusters) == 1:
        return (job,)
    return tuple(job_from_document({**job.document, "cluster": [each]}) for each in clusters)


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


def _plan_with(job: Job, target: Target, search: Callable[[Job], Result], engine: Pins, found: list[Planned]) -> float:
    """What a search with some engines finds, into ``found``, and its bound; errors as in ``plan_for``."""
    rules = merged_pins(pins_of(job, target), engine)
    result = search(with_pins(job, target, rules))
    refusal: InputError | None = None
    mine = list[Planned]()
    try:
        mine.append(_followed(result, job, target))
    except InputError as error:  # roles in the actor's layout may need more than was planned
        refusal = error
    leads = [plan.role("actor").training for plan in (result.plan, *(planned.result.plan for planned in mine))]
    if target.one_layout:  # once more, with a layout that all of a process get: the rest is then chosen for it
        again = (_again(job, target, search, layout, rules) for layout in dict.fromkeys(leads))
        mine += [planned for planned in again if planned is not None]
    if not mine and refusal is not None:
        raise refusal
    found += mine
    return result.bound_s


def merged_pins(first: Pins, second: Pins) -> Pins:
    """Pins of both, which do not contradict each other."""
    out = {role: {stage: dict(fixed) for stage, fixed in stages.items()} for role, stages in first.items()}
    for role, stages in second.items():
        for stage, fixed in stages.items():
            out.setdefault(role, {}).setdefault(stage, {}).update(fixed)
    return out


def pins_of(job: Job, target: Target) -> Pins:
    """The target's rules as pins of a job."""
    flow, generates = job.facts().dataflow, _generates(job)
    pins: Pins = {role: {} for role in flow.roles if role in target.together}
    if target.fsdp:
        for role, fixed in pins.items():
            fixed["training" if flow.is_trained(role) else "inference"] = dict(LIMITED)
    engine = {} if target.engine_pipeline else {"pp": 1}
    if target.max_num_seqs is not None:
        engine["max_num_seqs"] = target.max_num_seqs
    if not target.any_experts:
        engine["attention_dp"] = 1
    if engine:
        pins.setdefault(generates, {})["generation"] = engine
    return {role: fixed for role, fixed in pins.items() if fixed}


def one_layout(job: Job, target: Target, layout: ParallelLayout) -> Pins:
    """Pins of every model of the actor's process to one layout."""
    flow, degrees = job.facts().dataflow, {k: v for k, v in degrees_of(layout).items() if k != "vpp"}
    members = [role for role in flow.roles if role in target.together]
    return {role: {"training" if flow.is_trained(role) else "inference": dict(degrees)} for role in members}


def with_pins(job: Job, target: Target, *more: Mapping[str, Mapping[str, Any]]) -> Job:
    """The job with rules beside its own pins; ``InputError`` where these contradict them."""
    merged: dict[str, Any] = {key: value for key, value in job.document["pin"].items() if value is not None}
    for pins in more:
        for role, stages in pins.items():
            for stage, fixed in stages.items():
                own = merged.setdefault(role, {}).setdefault(stage, {}) or {}
                clash = [k for k, v in fixed.items() if own.get(k) not in (None, v)]
                if clash:
                    raise InputError(
                        f"pin.{role}.{stage}.{clash[0]}: {own[clash[0]]} is pinned, and {target.name} "
                        f"{target.version} has {fixed[clash[0]]} there; take the pin out, or plan for another target"
                    )
                merged[role][stage] = {**own, **fixed}
    together = [role for role in job.facts().dataflow.roles if role in target.together]
    if len(together) > 1:
        share = merged.get("share") or {}
        merged["share"] = {**share, "require": [*(share.get("require") or []), together]}
    return job_from_document({**job.document, "pin": merged})


def _with_engines(job: Job, target: Target) -> Job:
    """The job with the target's engines, its newest releases unless the job names one; offload is listed if it may."""
    engines, search = dict(job.document["engines"]), dict(job.document["search"])
    for kind, family in (("training", target.training), ("generation", target.generation)):
        if family and not str(engines[kind]).startswith(f"{family}@"):
            engines[kind] = newest(kind, family)
    search["offload"] = search["offload"] or target.offloads
    return job_from_document({**job.document, "engines": engines, "search": search})


def _as_trained_there(job: Job, target: Target) -> Job:
    """Old log-probs from whom the target takes them for the job's schedules, unless the job says who gives them."""
    section = job.document["implementation"]
    asked = section.get("old_log_prob")
    if asked == "engine" and target.may_bypass:
        return job
    if asked is None and all(target.bypasses(m.schedule, m.in_flight_updates) for m in job.request().modes):
        return job
    return job_from_document({**job.document, "implementation": {**section, "old_log_prob": "trainer"}})


def _followed(result: Result, job: Job, target: Target) -> Planned:
    ours, points = target.followed(Source(result.plan, job))
    timeline = simulate(ours.plan, ours.facts)
    told = replace(result, plan=ours.plan, timeline=timeline)
    return Planned(told, ours.job, points)


def _again(
    job: Job, target: Target, search: Callable[[Job], Result], layout: ParallelLayout | None, rules: Pins
) -> Planned | None:
    if layout is None:
        return None
    try:
        more = one_layout(job, target, layout)
        return _followed(search(with_pins(job, target, rules, more)), job, target)
    except InputError:
        return None


def _proven(result: Result, bound_s: float) -> Result:
    """The plan that the system runs beside the bound of the search under its rules, which allows no less than it."""
    bound_s = min(bound_s, result.iteration_s)
    gap = (result.iteration_s - bound_s) / result.iteration_s
    return replace(
        result,
        bound_s=bound_s,
        value_bound=bound_s,
        gap=gap,
        status="optimal" if gap <= result.tolerance else "feasible",
        runners_up=(),
        alternatives=(),
        plain=None,
        faster=None,
        open_because=() if gap <= result.tolerance else (RELAXED,),
    )
