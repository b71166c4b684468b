"""The best plan of each named placement beside the best of all placements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from hybridmap.config import Job
    from mapper.result import Result

BEST = "best found"
PLACEMENTS = {"colocate": "colocate", "split": "split", "standalone": "standalone", BEST: "any"}


@dataclass(frozen=True)
class Row:
    """One placement: its best plan, or why it has none."""

    name: str
    result: Result | None
    error: HybridmapError | None = None


def best_of(job: Job, name: str) -> Row:
    """The best plan by time of a placement, a key of ``PLACEMENTS``."""
    from mapper.search import find_plan

    try:
        found = find_plan(
            job.facts(),
            placement=PLACEMENTS[name],
            runners_up=False,
            pins=job.pins(),
            modes=job.modes(),
            space=job.space(),
        )
        return Row(name, found)
    except HybridmapError as error:  # this placement does not exist for these roles, or does not fit
        return Row(name, None, error)
