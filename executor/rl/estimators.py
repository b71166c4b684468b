"""What estimators of advantages share: what they may read besides the batch, GAE, and the KL from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from executor.rl.advantages import gae, group_relative, normalised, over_tokens
from executor.rl.kl import FixedKl, kl_estimate, token_rewards
from executor.rl.sequences import written

if TYPE_CHECKING:
    from executor.rl.kl import AdaptiveKl
    from executor.rl.lagrangian import LagrangeMultiplier


@dataclass(frozen=True)
class Estimation:
    """What an estimator may read besides the batch; ``kl`` is what is taken off rewards."""

    gamma: float
    lam: float
    kl: FixedKl | AdaptiveKl
    multiplier: LagrangeMultiplier | None = None
    max_tokens: int = 0
    overlong_buffer: int = 0
    scale_advantages: bool = True
    advantage_eps: float = 1e-4


def gae_on(scores: torch.Tensor, batch: TensorDict, how: Estimation) -> TensorDict:
    """GAE on ``scores`` with a KL penalty per token, normalised over the batch."""
    mask = batch["response_mask"]
    rewards = token_rewards(scores, token_kl(batch), mask, how.kl.coefficient)
    advantages, returns = gae(rewards, batch["values"], mask, how.gamma, how.lam)
    return TensorDict({"advantages": normalised(advantages, mask), "returns": returns}, batch_size=batch.batch_size)


def response_rewards(batch: TensorDict, how: Estimation) -> torch.Tensor:
    """Scores less the KL of the whole response, ``[B]``."""
    penalty = (token_kl(batch) * written(batch)).sum(1)
    return torch.sub(batch["scores"], penalty, alpha=how.kl.coefficient)


def relative_to_group(rewards: torch.Tensor, batch: TensorDict, how: Estimation) -> TensorDict:
    """Advantages from ``rewards [B]`` relative to the other responses to the same prompt."""
    relative = group_relative(rewards, batch["group"], scale=how.scale_advantages, eps=how.advantage_eps)
    advantages = over_tokens(relative, written(batch))
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


def token_kl(batch: TensorDict) -> torch.Tensor:
    """KL of the policy from the reference at each sampled token, ``[B, R]``; 0 without a reference."""
    reference = batch.get("ref_log_probs", None)
    if reference is None:
        return torch.zeros(batch["response_mask"].shape)
    return kl_estimate(batch["log_probs"], reference)


def mean_kl(batch: TensorDict) -> float:
    """KL summed over a response, mean over rows: what adaptive control steers."""
    return float((token_kl(batch) * written(batch)).sum(1).mean())
