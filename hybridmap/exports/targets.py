"""Plans for a target system: the search within what it allows (``simulator.systems.targets``)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hybridmap.exports.export import Point, Points, Source
from hybridmap.exports.followed import FOLLOWED, require_algorithm
from hybridmap.exports.target_jobs import jobs_for
from hybridmap.exports.target_pins import (
    engines_of,
    layouts_in,
    merged_pins,
    one_layout,
    pins_of,
    shared_degrees,
    with_pins,
)
from hybridmap.job.load import job_from_document
from mapper.execution_mode import mode_of
from profiles.errors import InputError, UnknownNameError
from simulator.play.simulate import simulate
from simulator.systems.host_costs import between_calls_text
from simulator.systems.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hybridmap.exports.target_pins import Degrees, Pins
    from hybridmap.job.job import Job
    from mapper.result import Result

OWN = "hybridmap"
"""Our own executor, which runs whatever is planned."""
RELAXED = "the bound is that of a search which leaves out that all models of a process have one layout"
ONE_KIND = "planned on the {} alone: workers are put on any GPU that is free, whatever its kind"


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
    host = between_calls_text(system.system, found.job.facts())
    held = [f"planned for {system.name}, release {system.version}: {'; '.join(rules)}", host, *changed]
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
        The system lacks the algorithm, the job's pins contradict the rules, or it runs nothing near what fits.
    """
    require_algorithm(target.system, job.algorithm)
    found, bounds, refusal, out = list[Planned](), list[float](), InputError(""), Points()
    for one in jobs_for(job, target, out):
        for engine in engines_of(one, target):
            try:
                bounds.append(_plan_with(one, target, search, engine, found))
            except InputError as error:
                refusal = error
    if not found:
        raise refusal
    asked = job.request().modes  # a system may run another schedule near one of these: only where it runs none of them
    best = min(found, key=lambda each: (mode_of(each.result.plan) not in asked, each.result.iteration_s))
    if len(job.cluster) > 1:
        out.cannot("cluster", ONE_KIND.format(best.job.cluster[0].device))
    return replace(best, result=_proven(best.result, min(bounds)), points=(*out.found, *best.points))


def _plan_with(job: Job, target: Target, search: Callable[[Job], Result], engine: Pins, found: list[Planned]) -> float:
    """What a search with some engines finds, into ``found``, and its bound; errors as in ``plan_for``.

    Where models have one layout, each that the search gave one of them is tried for all, and the rest chosen for it;
    where none of these does, every one that all can have.
    """
    rules = merged_pins(pins_of(job, target), engine)
    result = search(with_pins(job, target, rules))
    refusal: InputError | None = None
    mine = list[Planned]()
    try:
        mine.append(_followed(result, job, target))
    except InputError as error:  # roles in the actor's layout may need more than was planned
        refusal = error
    leads = [*layouts_in(result.plan, target)]
    if len(leads) > 1:
        leads += [lead for each in mine for lead in layouts_in(each.result.plan, target) if lead not in leads]
        mine += _sharing(job, target, search, rules, leads)
    if not mine and target.alike:
        mine += _sharing(job, target, search, rules, shared_degrees(job, target))
    if not mine and refusal is not None:
        raise refusal
    found += mine
    return result.bound_s


def _followed(result: Result, job: Job, target: Target) -> Planned:
    ours, points = FOLLOWED[target.system](Source(result.plan, job))
    num_gpus = job.facts().group.num_gpus
    if ours.plan.num_gpus > num_gpus:
        raise InputError(
            f"{target.name} needs {ours.plan.num_gpus:,} GPUs for its pools, of {num_gpus:,} that there are"
        )
    timeline = simulate(ours.plan, ours.facts)
    told = replace(result, plan=ours.plan, timeline=timeline)
    return Planned(told, ours.job, points)


def _sharing(
    job: Job, target: Target, search: Callable[[Job], Result], rules: Pins, leads: Iterable[Degrees]
) -> Iterator[Planned]:
    """The best plans in which all models of one layout have these degrees; none for degrees that do not fit."""
    for degrees in leads:
        with suppress(InputError):
            pinned = with_pins(job, target, rules, one_layout(job, target, degrees))
            yield _followed(search(pinned), job, target)


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
