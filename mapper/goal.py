"""What a plan is good at: the objective of a search, and what a plan is worth under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Goal = Literal["time", "throughput_per_gpu", "cost", "gpus"]
GOALS: tuple[Goal, ...] = ("time", "throughput_per_gpu", "cost", "gpus")
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Objective:
    """What is made as small as can be.

    Parameters
    ----------
    goal
        ``time``: seconds of an iteration. ``throughput_per_gpu``: GPU-seconds of an iteration, so that tokens per
        second and GPU are the most. ``cost``: the price of an iteration. ``gpus``: GPUs of a plan whose iteration
        takes no longer than the target, the fastest among those. GPUs that a plan leaves unused cost nothing.
    price_per_gpu_hour
        In any currency; 0 where none is given.
    target_iteration_s
        For ``gpus``.
    """

    goal: Goal = "time"
    price_per_gpu_hour: float = 0.0
    target_iteration_s: float | None = None

    def value(self, iteration_s: float, num_gpus: int) -> float:
        """What is minimised, of an iteration on so many GPUs: s, GPU-s, currency or GPUs."""
        if self.goal == "time":
            return iteration_s
        if self.goal == "gpus":
            return float(num_gpus)
        return iteration_s * num_gpus if self.goal == "throughput_per_gpu" else self.cost(iteration_s, num_gpus)

    def cost(self, iteration_s: float, num_gpus: int) -> float:
        """Price of an iteration on so many GPUs, in the currency of the price."""
        return iteration_s * num_gpus * self.price_per_gpu_hour / SECONDS_PER_HOUR
