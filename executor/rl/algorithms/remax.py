"""ReMax: the baseline is the score of the greedy response to the same prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict import TensorDict

from executor.rl.advantages import returns_to_go
from executor.rl.algorithm import Runnable, Step, policy_weights
from executor.rl.estimators import token_kl
from executor.rl.kl import token_rewards
from executor.rl.losses import reinforce
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from executor.controller.models import Models
    from executor.rl.algorithm import Outputs
    from executor.rl.estimators import Estimation
    from executor.rl.hyperparameters import Hyperparameters
    from executor.rl.losses import Sums
    from executor.worker.futures import Future


def remax(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts."""
    for prompts in batches:
        batch = prompts | models.actor.generate_sequences(prompts)
        greedy = prompts | models.actor.generate_sequences(prompts, do_sample=False, suffix="greedy")
        if models.recomputes_log_probs:  # after both generations: engines change places once
            batch |= models.actor.compute_log_prob(batch)
        if "reference" in models:
            batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.reward.compute_reward(greedy, column="greedy_scores", suffix="greedy")
        batch |= models.controller.compute_advantage(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"actor": actor})


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """The score less that of the greedy response to the same prompt, with the KL penalty from each token on."""
    mask = batch["response_mask"]
    rewards = token_rewards(batch["scores"] - batch["greedy_scores"], token_kl(batch), mask, how.kl.coefficient)
    returns = returns_to_go(rewards, mask, how.gamma)
    return TensorDict({"advantages": returns, "returns": returns}, batch_size=batch.batch_size)


def loss(outputs: Outputs, rows: TensorDict, hyper: Hyperparameters) -> Sums:
    """The policy gradient, without a ratio to clip."""
    return reinforce(outputs["log_probs"], rows["advantages"], policy_weights(rows))


REMAX = Runnable(ALGORITHMS["remax"], remax, advantages, loss)
