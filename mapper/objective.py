"""What a plan is good at: the objective of a search, and what a plan is worth under it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Goal = Literal["time", "throughput_per_gpu", "cost", "gpus"]
GOALS: tuple[Goal, ...] = ("time", "throughput_per_gpu", "cost", "gpus")
SECONDS_PER_HOUR = 3600.0
PRICE_DIGITS = 4


@dataclass(frozen=True)
class Objective:
    """What is made as small as can be.

    Parameters
    ----------
    goal
        ``time``: seconds of an iteration. ``throughput_per_gpu``: GPU-seconds of an iteration, so that tokens per
        second and GPU are the most. ``cost``: the price of an iteration. ``gpus``: GPUs of a plan whose iteration
        takes no longer than the target, the fastest among those. GPUs that a plan leaves unused cost nothing.
    prices
        Kinds of GPU with their price per GPU-hour, in any currency; empty where none is given.
    target_iteration_s
        For ``gpus``.
    """

    goal: Goal = "time"
    prices: tuple[tuple[str, float], ...] = ()
    target_iteration_s: float | None = None

    def value(self, iteration_s: float, gpus: Mapping[str, int]) -> float:
        """What is minimised, of an iteration on so many GPUs by kind: s, GPU-s, currency or GPUs."""
        if self.goal == "time":
            return iteration_s
        num_gpus = sum(gpus.values())
        if self.goal == "gpus":
            return float(num_gpus)
        return iteration_s * num_gpus if self.goal == "throughput_per_gpu" else self.cost(iteration_s, gpus)

    def cost(self, iteration_s: float, gpus: Mapping[str, int]) -> float:
        """Price of an iteration on so many GPUs by kind, in the currency of the prices."""
        price = dict(self.prices)
        return iteration_s * sum(n * price[kind] for kind, n in gpus.items()) / SECONDS_PER_HOUR

    def weights(self, kinds: tuple[str, ...]) -> tuple[dict[str, int], float]:
        """What a GPU of each kind counts in whole units, and the worth of a unit: GPU-s or currency per second.

        Prices are taken to ``PRICE_DIGITS`` digits after the point, so the smallest unit is exact for every price list.
        """
        if self.goal != "cost":
            return dict.fromkeys(kinds, 1), 1.0
        price = dict(self.prices)
        exact = {kind: Fraction(f"{price[kind]:.{PRICE_DIGITS}f}") for kind in kinds}
        unit = Fraction(
            math.gcd(*(f.numerator * (10**PRICE_DIGITS // f.denominator) for f in exact.values())), 10**PRICE_DIGITS
        )
        return {kind: int(f / unit) for kind, f in exact.items()}, float(unit) / SECONDS_PER_HOUR
