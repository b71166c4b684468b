"""What a plan is good at: the objective of a search, and what a plan is worth under it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

Goal = Literal["time", "throughput_per_gpu", "cost", "gpus"]
GOALS: tuple[Goal, ...] = ("time", "throughput_per_gpu", "cost", "gpus")
SECONDS_PER_HOUR = 3600.0
PRICE_DIGITS = 7


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
        """Price of an iteration on so many GPUs by device type, in the currency of the prices."""
        price = self._exact()
        return iteration_s * sum(n * float(price[device_type]) for device_type, n in gpus.items()) / SECONDS_PER_HOUR

    def weights(self, device_types: tuple[str, ...]) -> tuple[dict[str, int], float]:
        """What a GPU of each type counts in whole units, and the worth of a unit: GPU-s or currency per second.

        Raises
        ------
        InputError
            A price is less than a millionth of another.
        """
        if self.goal != "cost":
            return dict.fromkeys(device_types, 1), 1.0
        price = self._exact()
        exact = {device_type: price[device_type] for device_type in device_types}
        for name, each in self.prices:
            if each > 0 and not price[name]:
                raise InputError(
                    f"objective: the price of {name}, {each}, is less than a millionth of the dearest GPU's"
                )
        whole = math.lcm(*(each.denominator for each in exact.values()))
        unit = Fraction(math.gcd(*(int(each * whole) for each in exact.values())) or 1, whole)
        return {name: int(each / unit) for name, each in exact.items()}, float(unit) / SECONDS_PER_HOUR

    def _exact(self) -> dict[str, Fraction]:
        """Prices to ``PRICE_DIGITS`` digits of the highest one, as fractions: what is minimised has no rounding."""
        highest = max((price for _, price in self.prices), default=0.0)
        if highest <= 0:
            return {name: Fraction(0) for name, _ in self.prices}
        step = Fraction(10) ** (math.floor(math.log10(highest)) + 1 - PRICE_DIGITS)
        return {name: round(Fraction(price) / step) * step for name, price in self.prices}
