"""The nearest plan that each target system runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.nemo_rl.follow import followed as followed_by_nemo_rl
from hybridmap.exports.openrlhf.follow import followed as followed_by_openrlhf
from hybridmap.exports.slime.follow import followed as followed_by_slime
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
