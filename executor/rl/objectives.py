"""What each update minimises: the algorithm's losses on the rows of a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.rl import losses
from executor.rl.sequences import pretraining_of, sequences_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.rl.algorithm import Runnable
    from executor.run_config import Hyperparameters

    Outputs = Mapping[str, torch.Tensor]
    TokenLoss = Callable[[Outputs, TensorDict], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Objective:
    """One term of an update: whose sequences, which outputs, which loss.

    Parameters
    ----------
    rows
        Batch with ``tokens [B, T]``, ``token_mask [B, T]`` and ``target_mask [B, T - first_target]``, plus whatever
        columns the loss reads.
    first_target
        The model predicts tokens from this position on.
    loss
        From the model's outputs (``log_probs`` and ``entropy``, or ``values``, each ``[b, T - first_target]``) and the
        rows of a micro-batch to sums over target tokens; ``loss`` is differentiated, the rest are metrics.
    weight
        Factor of this term. Each term is a mean over its target tokens in the whole mini-batch, all ranks together.
    temperature
        What logits are divided by before log-probs and entropy: that of sampling for tokens that were sampled.
    """

    rows: TensorDict
    first_target: int
    loss: TokenLoss
    weight: float = 1.0
    temperature: float = 1.0


def policy_objectives(batch: TensorDict, runnable: Runnable, hyper: Hyperparameters) -> tuple[Objective, ...]:
    """The policy loss of ``algorithm``, and the pretraining loss where the batch has text for it and it counts."""
    rows, first = sequences_of(batch)
    if runnable.algorithm.drops_equal_groups:  # they teach nothing, and do not count in the mean
        rows["target_mask"] = rows["target_mask"] & (rows["advantages"] != 0).any(1, keepdim=True)

    def loss(outputs: Outputs, rows: TensorDict) -> losses.Sums:
        entropy = losses.entropy_bonus(outputs["entropy"], rows["target_mask"], hyper.entropy_coefficient)
        return losses.added(runnable.policy_loss(outputs, rows, hyper), entropy)

    objectives = [Objective(rows, first, loss, temperature=hyper.temperature)]
    if hyper.pretrain_coefficient > 0 and "pretrain_loss" in batch.keys():  # noqa: SIM118
        text = pretraining_of(batch)
        objectives.append(Objective(text, 1, _pretrain_loss, hyper.pretrain_coefficient))
    return tuple(objectives)


def value_objectives(batch: TensorDict, hyper: Hyperparameters) -> tuple[Objective, ...]:
    """The clipped value loss."""
    rows, first = sequences_of(batch)

    def loss(outputs: Outputs, rows: TensorDict) -> losses.Sums:
        return losses.clipped_value(
            outputs["values"], rows["values"], rows["returns"], rows["target_mask"], hyper.value_clip
        )

    return (Objective(rows, first, loss),)


def _pretrain_loss(outputs: Outputs, rows: TensorDict) -> losses.Sums:
    found = losses.pretrain(outputs["log_probs"], rows["target_mask"])
    return {"loss": found["loss"], "pretrain_loss": found["loss"].detach()}
