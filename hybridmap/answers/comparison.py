"""The best plan of each named placement beside the best of all placements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.job.job import Job
    from mapper.request import SearchRequest
    from mapper.result import Result

    Search = Callable[[Job], Result]
    Rules = Callable[[Job, Search], tuple[Result, Job, list[str]]]
    """A search within rules: what it finds, the job that is then run, and what held it."""

BEST = "best found"
PLACEMENTS = {"colocate": "colocate", "split": "split", "standalone": "standalone", BEST: "any"}


@dataclass(frozen=True)
class Row:
    """One placement: its best plan, or why it has none."""

    name: str
    result: Result | None
    error: HybridmapError | None = None
    held: tuple[str, ...] = ()
    """What rules of a target held the search."""


def by_time(job: Job, placement: str) -> SearchRequest:
    """The search for the fastest plan of a placement, plain or not."""
    from mapper.request import TIME

    return replace(job.request().fastest(), objective=TIME, placement=placement, runners_up=False)


def best_of(job: Job, name: str, within: Rules) -> Row:
    """The best plan by time of a placement, a key of ``PLACEMENTS``, within the rules of what is to run it."""
    from mapper.search.find_plan import find_plan

    try:
        result, _, held = within(job, lambda one: find_plan(by_time(one, PLACEMENTS[name])))
        return Row(name, result, held=tuple(held))
    except HybridmapError as error:  # this placement does not exist for these roles, or does not fit
        return Row(name, None, error)
