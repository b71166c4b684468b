"""How an RL algorithm is run: script, advantages, loss. Its roles and calls are in ``simulator.plan.algorithms``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from executor.rl.dynamic_sampling import scored_groups
from executor.rl.environment import played
from executor.rl.losses import clipped_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch
    from tensordict import TensorDict

    from executor.controller.models import Models
    from executor.rl.estimators import Estimation
    from executor.rl.hyperparameters import Hyperparameters
    from executor.rl.losses import Sums
    from executor.worker.futures import Future
    from simulator.plan.algorithms import Algorithm

    KlPlace = Literal["loss", "reward"]
    Outputs = Mapping[str, torch.Tensor]
    Script = Callable[[Models, Iterable[Future]], Iterator["Step"]]
    Estimate = Callable[[TensorDict, Estimation], TensorDict]


@dataclass(frozen=True)
class Step:
    """The batch of an iteration and the futures of its updates, by role; nothing here has been waited for."""

    batch: Future
    updates: dict[str, Future] = field(default_factory=dict)


class PolicyLoss(Protocol):
    """The algorithm's own terms of the policy loss, as sums over the target tokens of ``rows``."""

    def __call__(self, outputs: Outputs, rows: TensorDict, hyper: Hyperparameters) -> Sums: ...


def clipped(outputs: Outputs, rows: TensorDict, hyper: Hyperparameters) -> Sums:
    """PPO's clipped surrogate, which most algorithms minimise."""
    given = (outputs["log_probs"], rows["log_probs"], rows["advantages"], rows["target_mask"])
    weights = policy_weights(rows)
    return clipped_policy(*given, hyper.clip, hyper.clip_high, dual_clip=hyper.dual_clip, weights=weights)


def policy_weights(rows: TensorDict) -> torch.Tensor:
    """What each token counts in the policy's own loss, ``[B, R]``: its share of the mean, times its importance."""
    weights: torch.Tensor = rows["loss_weights"]
    importance = rows.get("importance", None)
    return weights if importance is None else weights * importance


def rollout(models: Models, prompts: Future) -> Future:
    """``prompts`` with responses, and the log-probs that ratios are taken against: the engine's, or the trainer's.

    With an environment they have several turns.
    With dynamic sampling the responses are scored, too, and may be to other prompts.
    """
    sampling = models.dynamic_sampling
    if models.first_turn_tokens:
        answered = played(models, prompts, models.first_turn_tokens)
    else:
        answered = prompts | models.actor.generate_sequences(prompts)
    batch = answered if sampling is None else scored_groups(models, answered, sampling)
    return batch | models.actor.compute_log_prob(batch) if models.recomputes_log_probs else batch


@dataclass(frozen=True)
class Runnable:
    """One RL algorithm as it is run.

    Parameters
    ----------
    algorithm
        What it is: its roles and calls, which the simulator plays too.
    script
        Its loop over prompts, one line per call of a model.
    estimate
        ``compute_advantage``: from the columns of a batch to ``advantages`` and ``returns``, both ``[B, R]``.
    policy_loss
        What ``update_actor`` minimises, without the terms that all share: KL, entropy, pretraining.
    kl_in
        Where the KL from the reference counts unless the run section says otherwise: in the loss, or off the reward.
    """

    algorithm: Algorithm
    script: Script
    estimate: Estimate
    policy_loss: PolicyLoss = clipped
    kl_in: KlPlace = "reward"

    def kl_place(self, asked: KlPlace | None) -> KlPlace:
        """Where the KL counts in a run that asks for ``asked``."""
        return asked or self.kl_in
