"""How an RL algorithm is run: script, advantages, loss. Its roles and calls are in ``simulator.plan.algorithms``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from executor.rl.losses import clipped_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch
    from tensordict import TensorDict

    from executor.controller.models import Models
    from executor.rl.estimators import Estimation
    from executor.rl.losses import Sums
    from executor.run_config import Hyperparameters
    from executor.worker.futures import Future
    from simulator.plan.algorithms import Algorithm

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
    weights = rows["loss_weights"]
    return clipped_policy(*given, hyper.clip, hyper.clip_high, dual_clip=hyper.dual_clip, weights=weights)


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
        What ``update_actor`` minimises, without the entropy and pretraining terms that all share.
    """

    algorithm: Algorithm
    script: Script
    estimate: Estimate
    policy_loss: PolicyLoss = clipped
