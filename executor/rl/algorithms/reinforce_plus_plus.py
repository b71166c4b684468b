"""REINFORCE++: GRPO's calls; advantages over the whole batch, without groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict import TensorDict

from executor.rl.advantages import normalised, returns_to_go
from executor.rl.algorithm import Runnable
from executor.rl.algorithms.grpo import grpo
from executor.rl.estimators import token_kl
from executor.rl.kl import token_rewards
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from executor.rl.estimators import Estimation


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """REINFORCE++: returns with a KL penalty per token, normalised over the whole batch; no critic and no groups."""
    mask = batch["response_mask"]
    rewards = token_rewards(batch["scores"], token_kl(batch), mask, how.kl.coefficient)
    returns = returns_to_go(rewards, mask, how.gamma)
    return TensorDict({"advantages": normalised(returns, mask), "returns": returns}, batch_size=batch.batch_size)


REINFORCE_PLUS_PLUS = Runnable(ALGORITHMS["reinforce++"], grpo, advantages)
