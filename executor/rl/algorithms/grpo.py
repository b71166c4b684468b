"""GRPO: an actor, a score, and a reference where there is one; no critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithm import Runnable, Step, rollout
from executor.rl.estimators import relative_to_group, response_rewards
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensordict import TensorDict

    from executor.controller.models import Models
    from executor.rl.estimators import Estimation
    from executor.worker.futures import Future


def grpo(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts, each prompt in as many rows as it has samples."""
    for prompts in batches:
        batch = rollout(models, prompts)
        if "reference" in models:
            batch |= models.reference.compute_ref_log_prob(batch)
        if models.dynamic_sampling is None:
            batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"actor": actor})


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """Rewards relative to the other responses to the same prompt."""
    return relative_to_group(response_rewards(batch, how), batch, how)


GRPO = Runnable(ALGORITHMS["grpo"], grpo, advantages, kl_in="loss")
