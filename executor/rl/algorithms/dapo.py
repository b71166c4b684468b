"""DAPO: GRPO's calls; long responses lose score, and groups that all score alike do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict import TensorDict

from executor.rl.advantages import group_relative, over_tokens, overlong_penalty
from executor.rl.algorithm import Runnable
from executor.rl.algorithms.grpo import grpo
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from executor.rl.estimators import Estimation


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """As GRPO, on scores that lose up to 1 in the last ``overlong_buffer`` tokens before the limit."""
    lengths = batch["response_mask"].sum(1)
    punished = batch["scores"] + overlong_penalty(lengths, how.max_tokens, how.overlong_buffer)
    advantages = over_tokens(
        group_relative(punished, batch["group"], scale=how.scale_advantages), batch["response_mask"]
    )
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


DAPO = Runnable(ALGORITHMS["dapo"], grpo, advantages)
