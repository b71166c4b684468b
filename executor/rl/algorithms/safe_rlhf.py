"""Safe-RLHF: PPO with a cost model, a multiplier for its limit, and a pretraining loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithm import Runnable, Step, rollout
from executor.rl.estimators import gae_on
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensordict import TensorDict

    from executor.controller.models import Models
    from executor.rl.estimators import Estimation
    from executor.worker.futures import Future


def safe_rlhf(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts; its column ``pretrain`` holds pretraining text."""
    for prompts in batches:
        batch = rollout(models, prompts)
        batch |= models.critic.compute_values(batch)
        batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.cost.compute_cost(batch)
        batch |= models.controller.compute_advantage(batch)
        critic = models.critic.update_critic(batch)
        batch |= models.actor.compute_loss(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"critic": critic, "actor": actor})


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """As PPO, on reward and cost combined by the multiplier; the dataflow has one critic, and it learns this signal."""
    assert how.multiplier is not None, "a run always has one"
    return gae_on(how.multiplier.combined(batch["scores"], batch["costs"]), batch, how)


SAFE_RLHF = Runnable(ALGORITHMS["safe-rlhf"], safe_rlhf, advantages)
