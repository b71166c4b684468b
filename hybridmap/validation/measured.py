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
    ``disturbed``: iterations that ran while the cores were slower or faster than when profiled, for ranks that take
    cores. They are not among ``timelines``, unless hardly any other is; ``holds_disturbed`` says so.
    """

    timelines: tuple[Timeline, ...]
    bytes_in: Mapping[str, int]
    kernels: Mapping[str, Mapping[str, float]]
    load_before: float
    load_after: float
    disturbed: int = 0
    holds_disturbed: bool = False
