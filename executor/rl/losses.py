"""Losses: sums over the tokens of a mask, with the metrics that explain them. Whoever calls divides by the tokens.

All inputs are ``[B, R]`` unless said otherwise; each function returns sums by name, ``loss`` among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.rl.kl import kl_estimate

if TYPE_CHECKING:
    from executor.rl.kl import Estimator

Sums = dict[str, torch.Tensor]

MOST_LOG_RATIO = 20.0
"""Log-ratios beyond this are taken as this, so that no exponential overflows; verl 0.9 has the same bound."""


def clipped_policy(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: float,
    clip_high: float | None = None,
    *,
    dual_clip: float | None = None,
    weights: torch.Tensor | None = None,
) -> Sums:
    """The clipped surrogate of PPO (Schulman et al. 2017, eq. 7), to be minimised.

    ``clip_high`` is another bound for growing probabilities (DAPO's clip-higher). ``dual_clip`` bounds the loss of
    tokens with a negative advantage at so many times it (Ye et al. 2020, eq. 5). ``weights [B, R]`` of the tokens in
    the loss; the mask's unless given.
    """
    ratio = (log_probs - old_log_probs).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()
    bounded = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    plain, clipped = ratio * advantages, bounded * advantages
    loss = -torch.minimum(plain, clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return {
        "loss": (loss * (mask if weights is None else weights)).sum(),
        "clip_fraction": ((clipped < plain) & mask).float().sum(),
        "approx_kl": ((old_log_probs - log_probs) * mask).sum(),
    }


def reinforce(log_probs: torch.Tensor, advantages: torch.Tensor, weights: torch.Tensor) -> Sums:
    """Policy gradient with a baseline (ReMax; Li et al. 2024); ``weights [B, R]`` of the tokens."""
    return {"loss": -(log_probs * advantages * weights).sum()}


def kl_penalty(
    log_probs: torch.Tensor,
    reference: torch.Tensor,
    mask: torch.Tensor,
    coefficient: float,
    *,
    kind: Estimator = "k3",
    clamp: float | None = None,
    weights: torch.Tensor | None = None,
) -> Sums:
    """The KL term inside the loss, as GRPO has it: an estimate (``kl.kl_estimate``), differentiated.

    ``clamp`` bounds ``k3`` of a token, as verl does; one beyond it has no gradient. ``weights`` as in
    ``clipped_policy``.
    """
    kl = kl_estimate(log_probs, reference, kind)
    kl = kl.clamp(-clamp, clamp) if clamp is not None and kind == "k3" else kl
    return {
        "loss": coefficient * (kl * (mask if weights is None else weights)).sum(),
        "reference_kl": (kl * mask).sum(),
    }


def entropy_bonus(
    entropy: torch.Tensor, mask: torch.Tensor, coefficient: float, weights: torch.Tensor | None = None
) -> Sums:
    """Minus the entropy, to keep the policy from collapsing; ``weights`` as in ``clipped_policy``."""
    loss = -coefficient * (entropy * (mask if weights is None else weights)).sum()
    return {"loss": loss, "entropy": (entropy * mask).sum()}


def clipped_value(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float | None
) -> Sums:
    """Half the squared error against the returns; with ``clip`` the larger one of the plain and the clipped value's."""
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return {"loss": 0.5 * (error * mask).sum(), "value_error": ((values - returns).square() * mask).sum()}


def pretrain(log_probs: torch.Tensor, mask: torch.Tensor) -> Sums:
    """Negative log-likelihood of the next token on pretraining text (the ptx loss of InstructGPT)."""
    return {"loss": -(log_probs * mask).sum()}


def added(*terms: Sums) -> Sums:
    """Sums by name over all terms."""
    total: Sums = {}
    for term in terms:
        for name, value in term.items():
            total[name] = total[name] + value if name in total else value
    return total
