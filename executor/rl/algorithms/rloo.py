"""RLOO (Ahmadian et al. 2024): GRPO's calls; each response against the mean of the others to its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict import TensorDict

from executor.rl.advantages import leave_one_out, over_tokens
from executor.rl.algorithm import Runnable
from executor.rl.algorithms.grpo import grpo
from executor.rl.estimators import response_rewards
from executor.rl.sequences import written
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from executor.rl.estimators import Estimation


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """The whole response is one action: its score less its KL, less the mean of the others' to the same prompt."""
    rewards = response_rewards(batch, how)
    advantages = over_tokens(leave_one_out(rewards, batch["group"]), written(batch))
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


RLOO = Runnable(ALGORITHMS["rloo"], grpo, advantages)
