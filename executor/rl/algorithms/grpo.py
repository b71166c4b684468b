"""GRPO: an actor, a score, and a reference where there is one; no critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict import TensorDict

from executor.rl.advantages import group_relative, over_tokens
from executor.rl.algorithm import Runnable, Step, clipped
from executor.rl.losses import added, kl_penalty
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from executor.controller.models import Models
    from executor.rl.algorithm import Outputs
    from executor.rl.estimators import Estimation
    from executor.rl.losses import Sums
    from executor.run_config import Hyperparameters
    from executor.worker.futures import Future


def grpo(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts, each prompt in as many rows as it has samples."""
    for prompts in batches:
        batch = prompts | models.actor.generate_sequences(prompts)
        if "reference" in models:
            batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"actor": actor})


def advantages(batch: TensorDict, how: Estimation) -> TensorDict:
    """Scores relative to the other responses to the same prompt; the KL term is in the loss."""
    advantages = over_tokens(
        group_relative(batch["scores"], batch["group"], scale=how.scale_advantages), batch["response_mask"]
    )
    return TensorDict({"advantages": advantages, "returns": advantages}, batch_size=batch.batch_size)


def loss(outputs: Outputs, rows: TensorDict, hyper: Hyperparameters) -> Sums:
    """The clipped surrogate, and the KL to the reference as a term of the loss."""
    terms = [clipped(outputs, rows, hyper)]
    if "ref_log_probs" in rows.keys():  # noqa: SIM118
        given = (outputs["log_probs"], rows["ref_log_probs"], rows["target_mask"])
        how = {"kind": hyper.kl_estimator, "clamp": hyper.kl_clamp, "weights": rows["loss_weights"]}
        terms.append(kl_penalty(*given, hyper.kl_coefficient, **how))
    return added(*terms)


GRPO = Runnable(ALGORITHMS["grpo"], grpo, advantages, loss)
