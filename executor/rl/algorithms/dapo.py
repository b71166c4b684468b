"""DAPO: GRPO's calls; long responses lose score, and groups that all score alike do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.advantages import overlong_penalty
from executor.rl.algorithm import Runnable
from executor.rl.algorithms.grpo import grpo
from executor.rl.estimators import relative_to_group, response_rewards
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.rl.estimators import Estimation


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """As GRPO, on scores that lose up to 1 in the last ``overlong_buffer`` tokens before the limit."""
    lengths = batch["response_mask"].sum(1)
    punished = response_rewards(batch, how) + overlong_penalty(lengths, how.max_tokens, how.overlong_buffer)
    return relative_to_group(punished, batch, how)


DAPO = Runnable(ALGORITHMS["dapo"], grpo, advantages, kl_in="loss")
