"""PPO: actor, critic, reference, reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithms.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from executor.controller.models import Models
    from executor.worker.futures import Future


def ppo(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts."""
    for prompts in batches:
        batch = prompts | models.actor.generate_sequences(prompts)
        batch |= models.critic.compute_values(batch)
        batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        critic = models.critic.update_critic(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"critic": critic, "actor": actor})
