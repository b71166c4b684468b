"""The cost constraint of Safe-RLHF: a multiplier that grows while the mean cost is above its limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LagrangeMultiplier:
    """``value`` is lambda; its logarithm moves by ``learning_rate`` times the excess of the mean cost over ``limit``.

    Dai et al. 2024 (Safe RLHF), eq. 9 and 10; the bounds keep one bad batch from
    drowning the reward for good, and many good ones from making the limit forgotten.
    """

    value: float
    limit: float
    learning_rate: float
    smallest: float = 1e-4
    largest: float = 100.0

    def updated(self, mean_cost: float) -> LagrangeMultiplier:
        """After a batch with ``mean_cost``."""
        log_value = math.log(self.value) + self.learning_rate * self.value * (mean_cost - self.limit)
        bounded = min(max(log_value, math.log(self.smallest)), math.log(self.largest))
        return replace(self, value=math.exp(bounded))

    def combined(self, rewards: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """One signal from both, of bounded scale: ``(reward - lambda cost) / (1 + lambda)``."""
        return (rewards - self.value * costs) / (1.0 + self.value)
