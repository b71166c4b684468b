"""A job as a target runs it: its engines, its old log-probs; apart by kind of GPU, by schedule and by trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.follow import job_without
from hybridmap.exports.imported import newest
from hybridmap.job.load import job_from_document
from hybridmap.job.request import schedule_of
from simulator.plan.algorithms import algorithm_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridmap.exports.export import Points
    from hybridmap.job.job import Job
    from simulator.systems.targets import Target


def jobs_for(job: Job, target: Target, out: Points) -> Iterator[Job]:
    """The jobs, each of one kind of GPU, one schedule and one trainer, of which a target runs the best one.

    ``out`` gets what of the job the target does not run.
    """
    for kind in _of_one_kind(_without_reward(job, target, out)):
        for one in _of_one_schedule(kind):
            for trainer in target.trainers:
                yield _as_trained_there(_with_engines(one, target, trainer), target)


def _without_reward(job: Job, target: Target, out: Points) -> Job:
    """The job without a reward model, where the target has none that its settings start.

    An algorithm that is nothing without one stays whole: no such target runs it, and says so by name.
    """
    needs_one = "reward" in algorithm_of(job.facts().algorithm).roles
    if not target.by_hand or needs_one or "reward" not in job.facts().roles:
        return job
    out.cannot("reward", f"a reward model {target.by_hand}; it is not in these times")
    return job_from_document({**job.document, **job_without(job, "reward")})


def _of_one_kind(job: Job) -> tuple[Job, ...]:
    """The job on each kind of its GPUs: no system here is told which kind a pool has."""
    clusters = job.document["cluster"]
    if len(clusters) == 1:
        return (job,)
    return tuple(job_from_document({**job.document, "cluster": [each]}) for each in clusters)


def _of_one_schedule(job: Job) -> tuple[Job, ...]:
    """The job with each of its schedules: who generates, and whose log-probs are the old ones, depends on it."""
    modes = job.request().modes
    if len(modes) == 1:
        return (job,)
    document = job.document
    return tuple(job_from_document({**document, "schedule": schedule_of(mode).model_dump()}) for mode in modes)


def _with_engines(job: Job, target: Target, trainer: str) -> Job:
    """The job with the target's engines, its newest releases unless the job names one; offload is listed if it may."""
    engines, search = dict(job.document["engines"]), dict(job.document["search"])
    for kind, family in (("training", trainer), ("generation", target.generation)):
        if family and not str(engines[kind]).startswith(f"{family}@"):
            engines[kind] = newest(kind, family)
    search["offload"] = search["offload"] or target.offloads
    return job_from_document({**job.document, "engines": engines, "search": search})


def _as_trained_there(job: Job, target: Target) -> Job:
    """Old log-probs from whom the target takes them for the job's schedule, unless the job says who gives them."""
    section: dict[str, Any] = job.document["implementation"]
    asked = section.get("old_log_prob")
    if asked == "engine" and target.may_bypass:
        return job
    if asked is None and all((m.schedule, m.in_flight_updates) in target.bypassing for m in job.request().modes):
        return job
    return job_from_document({**job.document, "implementation": {**section, "old_log_prob": "trainer"}})
