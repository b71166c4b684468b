"""Advantages: GAE, within the group of a prompt, and against a greedy baseline. Masks are bool ``[B, R]``."""

from __future__ import annotations

import torch


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimates and returns, each ``[B, R]`` (Schulman et al. 2016, eq. 16).

    After a row's last token the value is 0: a response ends there.
    """
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = torch.where(here, delta + gamma * lam * following, following)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = torch.where(here, following, torch.zeros_like(following))
    return advantages, torch.where(mask, advantages + values, torch.zeros_like(values))


def returns_to_go(rewards: torch.Tensor, mask: torch.Tensor, gamma: float) -> torch.Tensor:
    """Discounted sum of the rewards from each token on, ``[B, R]``."""
    advantages, _ = gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)
    return advantages


def normalised(x: torch.Tensor, mask: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    """``x`` with mean 0 and the sample's variance (n - 1) 1 over the tokens of ``mask``, and 0 elsewhere."""
    num = mask.sum().clamp(min=1)
    mean = (x * mask).sum() / num
    variance = ((x - mean).square() * mask).sum() / (num - 1).clamp(min=1)
    return (x - mean) * torch.rsqrt(variance + eps) * mask


def group_relative(scores: torch.Tensor, group: torch.Tensor, *, scale: bool = True, eps: float = 1e-4) -> torch.Tensor:
    """Scores ``[B]`` less their group's mean, over its standard deviation if ``scale`` (GRPO; Shao et al. 2024).

    ``group [B]`` names the prompt of each row. The deviation is the sample's (n - 1), and a group of one gives 0.
    ``eps`` keeps rounding in groups of equal scores from growing into an advantage.
    """
    _, place, counts = torch.unique(group, return_inverse=True, return_counts=True)
    mean = torch.zeros(len(counts)).index_add_(0, place, scores) / counts
    centred = torch.sub(scores, mean[place])
    if not scale:
        return centred
    squares = torch.zeros(len(counts)).index_add_(0, place, centred.square())
    std = (squares / (counts - 1).clamp(min=1)).sqrt()
    return torch.div(centred, std[place] + eps)


def leave_one_out(scores: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Scores ``[B]`` less the mean of the other responses to the same prompt (RLOO; Ahmadian et al. 2024, eq. 8).

    A group of one has no others, and gives 0.
    """
    _, place, counts = torch.unique(group, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts)).index_add_(0, place, scores)[place]
    num = counts[place]
    others = (sums - scores) / (num - 1).clamp(min=1)
    return torch.where(num > 1, scores - others, torch.zeros_like(scores))


def overlong_penalty(lengths: torch.Tensor, maximum: int, buffer: int) -> torch.Tensor:
    """0 up to ``maximum - buffer`` tokens, then down to -1 at ``maximum`` in a straight line (DAPO, eq. 13); ``[B]``.

    ``lengths [B]``. A ``buffer`` of 0 punishes nothing.
    """
    if buffer == 0:
        return torch.zeros(len(lengths))
    return -((lengths - (maximum - buffer)) / buffer).clamp(0.0, 1.0)


def over_tokens(per_row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A number per row as the same number at each of its tokens, ``[B, R]``."""
    return per_row[:, None] * mask
