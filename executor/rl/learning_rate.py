"""How the learning rate moves over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RateSchedule:
    """What the learning rate is multiplied by, a function of the iteration alone, so that runs resume with it.

    Parameters
    ----------
    kind
        After the warm-up: ``constant``, or half a ``cosine`` down to ``floor`` in iteration ``iterations``, where it
        stays.
    warmup
        Iterations in which the factor grows in a straight line from 0.
    steps
        Optimizer steps of an iteration.
    """

    kind: Literal["constant", "cosine"] = "constant"
    warmup: int = 0
    iterations: int = 1
    floor: float = 0.0
    steps: int = 1

    def factor(self, num_steps: int) -> float:
        """For the step after ``num_steps`` steps. As verl 0.9's ``get_cosine_schedule_with_warmup`` up to the end."""
        iteration = num_steps // self.steps
        if iteration < self.warmup:
            return iteration / self.warmup
        if self.kind == "constant":
            return 1.0
        through = min((iteration - self.warmup) / max(1, self.iterations - self.warmup), 1.0)
        return max(self.floor, (1 - self.floor) / 2 * math.cos(math.pi * through) + (1 + self.floor) / 2)
