"""What each update minimises: the algorithm's losses on the rows of a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from executor.rl import losses
from executor.rl.mismatch import importance
from executor.rl.sequences import pretraining_of, sequences_of, written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.rl.algorithm import Runnable
    from executor.rl.hyperparameters import Hyperparameters, LossAggregation

    Outputs = Mapping[str, torch.Tensor]
    TokenLoss = Callable[[Outputs, TensorDict], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class LossTerm:
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
        Factor of this term. Each term is a mean over its target tokens in the whole mini-batch, all ranks together,
        unless ``aggregation`` says otherwise.
    temperature
        What logits are divided by before log-probs and entropy: that of sampling for tokens that were sampled.
    """

    rows: TensorDict
    first_target: int
    loss: TokenLoss
    weight: float = 1.0
    temperature: float = 1.0
    aggregation: LossAggregation = "token-mean"

    def counts(self) -> torch.Tensor:
        """``[2]`` fp64, to be added over ranks: target tokens, and what ``loss`` is divided by.

        ``token-mean`` divides by tokens, the others by sequences that have some; ``seq-mean-token-sum-norm`` by the
        longest response that there may be, too (Dr. GRPO; Liu et al. 2025).
        """
        mask = self.rows["target_mask"]
        tokens, sequences = mask.sum(), mask.any(1).sum()
        if self.aggregation == "token-mean":
            return torch.stack([tokens, tokens]).double()
        longest = mask.shape[1] if self.aggregation == "seq-mean-token-sum-norm" else 1
        return torch.stack([tokens, sequences * longest]).double()


def loss_weights(mask: torch.Tensor, aggregation: LossAggregation) -> torch.Tensor:
    """What each token counts in its row's loss, ``[B, R]``: 1, or a share of the row for ``seq-mean-token-mean``."""
    weights = mask.float()
    return weights / weights.sum(1, keepdim=True).clamp(min=1) if aggregation == "seq-mean-token-mean" else weights


def policy_loss_terms(batch: TensorDict, runnable: Runnable, hyper: Hyperparameters) -> tuple[LossTerm, ...]:
    """The policy loss of ``algorithm``, and the pretraining loss where the batch has text for it and it counts."""
    rows, first = sequences_of(batch)
    if runnable.algorithm.drops_equal_groups:  # they teach nothing, and do not count in the mean
        rows["target_mask"] = rows["target_mask"] & (rows["advantages"] != 0).any(1, keepdim=True)

    rows["loss_weights"] = loss_weights(rows["target_mask"], hyper.loss_aggregation)
    if hyper.importance != "none":
        given = (rows["log_probs"], rows["rollout_log_probs"], written(rows))
        rows["importance"] = importance(*given, hyper.importance, hyper.importance_cap)
    has_kl = "ref_log_probs" in batch.keys() and runnable.kl_place(hyper.kl_in) == "loss"  # noqa: SIM118

    def loss(outputs: Outputs, rows: TensorDict) -> losses.Sums:
        given = (outputs["entropy"], rows["target_mask"], hyper.entropy_coefficient, rows["loss_weights"])
        terms = [runnable.policy_loss(outputs, rows, hyper), losses.entropy_bonus(*given)]
        if has_kl:
            terms.append(_kl_term(outputs, rows, hyper))
        return losses.added(*terms)

    terms = [LossTerm(rows, first, loss, temperature=hyper.temperature, aggregation=hyper.loss_aggregation)]
    if hyper.pretrain_coefficient > 0 and "pretrain_loss" in batch.keys():  # noqa: SIM118
        text = pretraining_of(batch)
        terms.append(LossTerm(text, 1, _pretrain_loss, hyper.pretrain_coefficient))
    return tuple(terms)


def _kl_term(outputs: Outputs, rows: TensorDict, hyper: Hyperparameters) -> losses.Sums:
    given = (outputs["log_probs"], rows["ref_log_probs"], rows["target_mask"], hyper.kl_coefficient)
    return losses.kl_penalty(*given, kind=hyper.kl_estimator, clamp=hyper.kl_clamp, weights=rows["loss_weights"])


def value_loss_terms(batch: TensorDict, hyper: Hyperparameters) -> tuple[LossTerm, ...]:
    """The clipped value loss."""
    rows, first = sequences_of(batch)

    def loss(outputs: Outputs, rows: TensorDict) -> losses.Sums:
        return losses.clipped_value(
            outputs["values"], rows["values"], rows["returns"], rows["target_mask"], hyper.value_clip
        )

    return (LossTerm(rows, first, loss),)


def _pretrain_loss(outputs: Outputs, rows: TensorDict) -> losses.Sums:
    found = losses.pretrain(outputs["log_probs"], rows["target_mask"])
    return {"loss": found["loss"], "pretrain_loss": found["loss"].detach()}
