"""PPO: actor, critic, a score, and a reference where there is one."""

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


def ppo(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts."""
    for prompts in batches:
        batch = rollout(models, prompts)
        batch |= models.critic.compute_values(batch)
        if "reference" in models:
            batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        critic = models.critic.update_critic(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"critic": critic, "actor": actor})


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """GAE on scores with a KL penalty per token, normalised over the batch."""
    return gae_on(batch["scores"], batch, how)


PPO = Runnable(ALGORITHMS["ppo"], ppo, advantages)
