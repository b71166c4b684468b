"""Does a job fit: which plan was looked at, whether it fits, and what would help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.job.job import Job
    from mapper.analysis.fit import Remedy
    from mapper.deadline import Deadline
    from mapper.request import SearchRequest
    from mapper.result import Result
    from simulator.plan.plan import Plan


LEAST_S = 1.0
"""Seconds for the fewest GPUs where the search for the plan left less."""


@dataclass(frozen=True)
class Fit:
    """An answer.

    Parameters
    ----------
    plan, fits, origin
        The plan that was looked at, whether it fits, and in words where it comes from.
    needs_bytes
        Where no plan fits: memory of a GPU on which one would.
    remedies
        Changes that bring a plan which does not fit nearer to it.
    fewest
        The fastest plan on the fewest GPUs of the cluster; ``None`` if all of them do not hold the job.
    fewest_beyond
        The fewest GPUs that do, more than the cluster has included; ``None`` if none of this kind do.
    """

    plan: Plan
    fits: bool
    origin: str
    needs_bytes: float | None
    remedies: tuple[Remedy, ...]
    fewest: Result | None
    fewest_beyond: int | None


def fit_of_plan(job: Job, plan: Plan, source: str, time_limit_s: float = 60.0) -> Fit:
    """A given plan on this job's cluster and work; ``InfeasibleError`` if more than memory is wrong with it."""
    from mapper.analysis.fit import remedies
    from mapper.deadline import Deadline
    from profiles.errors import InfeasibleError
    from simulator.feasibility import check_plan

    deadline = Deadline.after(time_limit_s)
    found = check_plan(plan, job.facts())
    if any(violation.rule != "memory" for violation in found):
        raise InfeasibleError(f"{source} is no plan of this job: " + "; ".join(v.message for v in found))
    helps = remedies(plan, job.facts()) if found else ()
    fewest, beyond = _fewest(job.request(), deadline)
    return Fit(plan, not found, source, None, helps, fewest, beyond)


def fit_of_job(job: Job, time_limit_s: float = 60.0, progress: Callable[[int, int], None] | None = None) -> Fit:
    """The best plan, or the leanest where none fits; ``InfeasibleError`` if pins are to blame, and names them."""
    from mapper.analysis.fit import leanest_plan, remedies
    from mapper.deadline import Deadline
    from mapper.search.find_plan import find_plan
    from profiles.errors import InfeasibleError

    deadline = Deadline.after(time_limit_s)
    request = replace(job.request(), runners_up=False, time_limit_s=time_limit_s)
    try:
        result = find_plan(request)
    except InfeasibleError as error:
        if error.fewest_gpus is None and request.pins:
            raise  # the pins are to blame, and the message says which
        found = leanest_plan(request, progress, deadline)
        if found is None:
            raise
        plan, needs = found
        origin = "the plan that needs least memory; none fits"
        return Fit(plan, False, origin, needs, remedies(plan, job.facts()), None, error.fewest_gpus)
    fewest, beyond = _fewest(request, deadline)
    return Fit(result.plan, True, "the best plan", None, (), fewest, beyond)


def _fewest(request: SearchRequest, deadline: Deadline) -> tuple[Result | None, int | None]:
    """The plan on the fewest GPUs of this cluster, else how many it would take; neither where time does not suffice."""
    from mapper.analysis.fit import fewest_gpus_plan
    from mapper.deadline import TimeUpError
    from mapper.search.infeasible import fewest_gpus

    try:
        found = fewest_gpus_plan(replace(request, time_limit_s=max(deadline.left_s, LEAST_S)))
        if found is not None:
            return found, found.plan.num_gpus
        return None, fewest_gpus(request.problem(request.modes[0]), deadline)
    except TimeUpError:
        return None, None
