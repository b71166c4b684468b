"""Distance from the reference: estimates per token, the reward they are taken from, and how the coefficient moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(log_probs: torch.Tensor, reference: torch.Tensor, kind: Estimator = "k1") -> torch.Tensor:
    """Estimate of KL(policy || reference) at each sampled token (Schulman, Approximating KL divergence, 2020).

    ``k1`` is unbiased with high variance, ``k2`` biased and low, ``k3`` unbiased and never negative.
    """
    ratio = log_probs - reference
    if kind == "k1":
        return ratio
    if kind == "k2":
        return ratio.square() / 2
    return torch.expm1(-ratio) + ratio


def token_rewards(scores: torch.Tensor, kl: torch.Tensor, mask: torch.Tensor, coefficient: float) -> torch.Tensor:
    """Rewards ``[B, R]``: minus the KL of each token, plus the score ``[B]`` at the last."""
    rewards = -coefficient * kl * mask
    last = mask.sum(1) - 1
    has_tokens = last >= 0
    rows = torch.arange(len(scores))[has_tokens]
    rewards[rows, last[has_tokens]] += scores[has_tokens]
    return rewards


@dataclass(frozen=True)
class FixedKl:
    """A coefficient that stays."""

    coefficient: float

    def updated(self, observed: float, num_samples: int) -> FixedKl:
        """The same again."""
        return self


@dataclass(frozen=True)
class AdaptiveKl:
    """A coefficient that steers the KL to ``target`` over about ``horizon`` samples (Ziegler et al. 2019, 2.2)."""

    coefficient: float
    target: float
    horizon: int

    def updated(self, observed: float, num_samples: int) -> AdaptiveKl:
        """After a batch of ``num_samples`` with mean KL ``observed``: the error counts up to 20 per cent."""
        error = min(max(observed / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error * num_samples / self.horizon))
