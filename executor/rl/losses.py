"""Losses: sums over the tokens of a mask, with the metrics that explain them. Whoever calls divides by the tokens.

All inputs are ``[B, R]`` unless said otherwise; each function returns sums by name, ``loss`` among them.
"""

from __future__ import annotations

import torch

Sums = dict[str, torch.Tensor]


def clipped_policy(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: float,
    clip_high: float | None = None,
) -> Sums:
    """The clipped surrogate of PPO (Schulman et al. 2017, eq. 7), to be minimised.

    ``clip_high`` is another bound for growing probabilities (DAPO's clip-higher).
    """
    ratio = (log_probs - old_log_probs).exp()
    bounded = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    plain, clipped = ratio * advantages, bounded * advantages
    loss = -torch.minimum(plain, clipped)
    return {
        "loss": (loss * mask).sum(),
        "clip_fraction": ((clipped < plain) & mask).float().sum(),
        "approx_kl": ((old_log_probs - log_probs) * mask).sum(),
    }


def reinforce(log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Sums:
    """Policy gradient with a baseline (ReMax; Li et al. 2024)."""
    return {"loss": -(log_probs * advantages * mask).sum()}


def kl_penalty(log_probs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, coefficient: float) -> Sums:
    """The KL term inside the loss, as GRPO has it: the k3 estimate, differentiated."""
    ratio = reference - log_probs
    kl = (torch.expm1(ratio) - ratio) * mask
    return {"loss": coefficient * kl.sum(), "reference_kl": kl.sum()}


def entropy_bonus(entropy: torch.Tensor, mask: torch.Tensor, coefficient: float) -> Sums:
    """Minus the entropy, to keep the policy from collapsing."""
    return {"loss": -coefficient * (entropy * mask).sum(), "entropy": (entropy * mask).sum()}


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
