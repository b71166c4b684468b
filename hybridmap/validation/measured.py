"""The measured side of a comparison: iterations of a run, and what its ranks counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.plan.timeline import Timeline


@dataclass(frozen=True)
class Measured:
    """Iterations after warm-up, the bytes that each call took in (all ranks), and the load beside the run.

    ``kernels``: seconds of each kernel by name, of the slowest rank, by call, in an iteration of the warm-up.
    ``slowness``: how many times as long this machine's cores took beside the run as when profiled, the median, for
    ranks that take cores. ``timelines`` are at the profile's pace: each is divided by what it was then. ``device``:
    what the ranks ran on, as its driver or its kernel names it.
    """

    timelines: tuple[Timeline, ...]
    bytes_in: Mapping[str, int]
    kernels: Mapping[str, Mapping[str, float]]
    load_before: float
    load_after: float
    device: str
    slowness: float = 1.0
