"""The measured side of a comparison: iterations of a run, and what its ranks counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.plan.timeline import Timeline


@dataclass(frozen=True)
class Measured:
    """Iterations after warm-up, the bytes that each call took in (all ranks), and the load beside the run."""

    timelines: tuple[Timeline, ...]
    bytes_in: Mapping[str, int]
    load_before: float
    load_after: float
