"""``compute_advantage`` of each algorithm: from the columns of a batch to ``advantages`` and ``returns``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from executor.rl.advantages import (
    gae,
    group_relative,
    leave_one_out,
    normalised,
    over_tokens,
    overlong_penalty,
    returns_to_go,
)
from executor.rl.kl import FixedKl, kl_estimate, token_rewards

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.rl.kl import AdaptiveKl
    from executor.rl.lagrangian import LagrangeMultiplier


@dataclass(frozen=True)
class Estimation:
    """What an estimator may read besides the batch."""

    gamma: float
    lam: float
    kl: FixedKl | AdaptiveKl
    multiplier: LagrangeMultiplier | None = None
    max_tokens: int = 0
    overlong_buffer: int = 0


def ppo(batch: TensorDict, how: Estimation) -> TensorDict:
    """GAE on scores with a KL penalty per token, normalised over the batch."""
    return _gae(batch, batch["scores"], how)


def safe_rlhf(batch: TensorDict, how: Estimation) -> TensorDict:
    """As PPO, on reward and cost combined by the multiplier; the dataflow has one critic, and it learns this signal."""
    assert how.multiplier is not None
    return _gae(batch, how.multiplier.combined(batch["scores"], batch["costs"]), how)


def remax(batch: TensorDict, how: Estimation) -> TensorDict:
    """The score less that of the greedy response to the same prompt, with the KL penalty from each token on."""
    mask = batch["response_mask"]
    rewards = token_rewards(batch["scores"] - batch["greedy_scores"], _kl(batch), mask, how.kl.coefficient)
    returns = returns_to_go(rewards, mask, how.gamma)
    return TensorDict({"advantages": returns, "returns": returns}, batch_size=batch.batch_size)


def grpo(batch: TensorDict, how: Estimation) -> TensorDict:
    """Scores relative to the other responses to the same prompt; the KL term is in the loss."""
    advantages = over_tokens(group_relative(batch["scores"], batch["group"]), batch["response_mask"])
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


def rloo(batch: TensorDict, how: Estimation) -> TensorDict:
    """The whole response is one action: its score less its KL, less the mean of the others' to the same prompt."""
    mask = batch["response_mask"]
    rewards = batch["scores"] - how.kl.coefficient * (_kl(batch) * mask).sum(1)
    advantages = over_tokens(leave_one_out(rewards, batch["group"]), mask)
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


def reinforce_plus_plus(batch: TensorDict, how: Estimation) -> TensorDict:
    """REINFORCE++: returns with a KL penalty per token, normalised over the whole batch; no critic and no groups."""
    mask = batch["response_mask"]
    rewards = token_rewards(batch["scores"], _kl(batch), mask, how.kl.coefficient)
    returns = returns_to_go(rewards, mask, how.gamma)
    return TensorDict({"advantages": normalised(returns, mask), "returns": returns}, batch_size=batch.batch_size)


def dapo(batch: TensorDict, how: Estimation) -> TensorDict:
    """As GRPO, on scores that lose up to 1 in the last ``overlong_buffer`` tokens before the limit."""
    lengths = batch["response_mask"].sum(1)
    punished = batch["scores"] + overlong_penalty(lengths, how.max_tokens, how.overlong_buffer)
    advantages = over_tokens(group_relative(punished, batch["group"]), batch["response_mask"])
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


ESTIMATORS: dict[str, Callable[[TensorDict, Estimation], TensorDict]] = {
    "ppo": ppo,
    "safe-rlhf": safe_rlhf,
    "remax": remax,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce++": reinforce_plus_plus,
    "dapo": dapo,
}


def _gae(batch: TensorDict, scores: torch.Tensor, how: Estimation) -> TensorDict:
    mask = batch["response_mask"]
    rewards = token_rewards(scores, _kl(batch), mask, how.kl.coefficient)
    advantages, returns = gae(rewards, batch["values"], mask, how.gamma, how.lam)
    return TensorDict({"advantages": normalised(advantages, mask), "returns": returns}, batch_size=batch.batch_size)


def _kl(batch: TensorDict) -> torch.Tensor:
    """Per token; 0 without a reference."""
    reference = batch.get("ref_log_probs", None)
    return torch.zeros_like(batch["log_probs"]) if reference is None else kl_estimate(batch["log_probs"], reference)


def mean_kl(batch: TensorDict) -> float:
    """KL summed over a response, mean over rows: what adaptive control steers."""
    return float((_kl(batch) * batch["response_mask"]).sum(1).mean())
