"""The nearest plan that each target system runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.nemo_rl.follow import followed as followed_by_nemo_rl
from hybridmap.exports.nemo_rl.follow import require_runs as require_nemo_rl_runs
from hybridmap.exports.openrlhf.follow import followed as followed_by_openrlhf
from hybridmap.exports.slime.follow import followed as followed_by_slime
from hybridmap.exports.slime.follow import require_runs as require_slime_runs
from hybridmap.exports.verl.follow import followed as followed_by_verl

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.exports.export import Point, Source

    Followed = Callable[[Source], tuple[Source, tuple[Point, ...]]]

FOLLOWED: dict[str, Followed] = {
    "verl": followed_by_verl,
    "nemo-rl": followed_by_nemo_rl,
    "openrlhf": followed_by_openrlhf,
    "slime": followed_by_slime,
}
"""By system: the plan that it runs of one that it is told, the job that it then runs, and what was changed."""

_RUNS_SOME: dict[str, Callable[[str], None]] = {"nemo-rl": require_nemo_rl_runs, "slime": require_slime_runs}


def require_algorithm(system: str, algorithm: str) -> None:
    """Refuse an algorithm that a system lacks whatever the plan, so that nobody searches for one first."""
    if system in _RUNS_SOME:
        _RUNS_SOME[system](algorithm)
