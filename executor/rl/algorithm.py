"""What an RL algorithm is to the executor: one record. Adding one is a file in ``algorithms`` and a line there.

The calls themselves are data of the plan (``simulator.plan.dataflow``), since the simulator plays the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from executor.rl.losses import clipped_policy
from simulator.plan.dataflow import build_dataflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch
    from tensordict import TensorDict

    from executor.controller.models import Models
    from executor.rl.estimators import Estimation
    from executor.rl.losses import Sums
    from executor.run_config import Hyperparameters
    from executor.worker.futures import Future
    from simulator.plan.dataflow import Dataflow

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
    return clipped_policy(*given, hyper.clip, hyper.clip_high)


@dataclass(frozen=True)
class Algorithm:
    """One RL algorithm.

    Parameters
    ----------
    name
        That of job files and of ``simulator.plan.dataflow``.
    script
        Its loop over prompts, one line per call of a model.
    estimate
        ``compute_advantage``: from the columns of a batch to ``advantages`` and ``returns``, both ``[B, R]``.
    policy_loss
        What ``update_actor`` minimises, without the entropy and pretraining terms that all share.
    compares_responses
        Whether a response is judged by the others to its prompt, so that a prompt needs two samples or more.
    drops_equal_groups
        Whether tokens without an advantage do not count in the mean of the loss: groups that all score alike.
    """

    name: str
    script: Script
    estimate: Estimate
    policy_loss: PolicyLoss = clipped
    compares_responses: bool = False
    drops_equal_groups: bool = False

    def dataflow(self, roles: tuple[str, ...]) -> Dataflow:
        """The calls of one iteration with the models that are there; ``InputError`` for roles that do not fit."""
        return build_dataflow(self.name, roles)
