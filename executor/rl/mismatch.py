"""How far the log-probs of the rollout are from those of the trainer, and the weights that make up for it.

An engine that generates and one that trains compute the same policy with other kernels, so they disagree a little on
every token. ``old`` are the trainer's log-probs before it learns, ``rollout`` the generation engine's, both ``[B, R]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from executor.rl.losses import MOST_LOG_RATIO

if TYPE_CHECKING:
    import torch

    Level = Literal["token", "sequence"]


def importance(old: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, level: Level, cap: float) -> torch.Tensor:
    """Truncated importance weights ``min(old / rollout, cap)``, ``[B, R]``, 0 outside ``mask`` (Yao et al. 2025).

    ``token``: each token its own ratio, which is biased and varies little. ``sequence``: the product over the
    response at each of its tokens. As verl 0.9's ``rollout_is``.
    """
    log_ratio = (old - rollout) * mask
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    return log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp().clamp(max=cap) * mask


def mismatch(old: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """What to log of the two: ``kl`` and ``k3_kl`` of the rollout from the trainer, means over tokens; ``log_ppl_diff``
    a mean over responses of their mean log-prob's difference; ``probs_diff_max``, ``probs_diff_mean`` of probabilities.
    """  # noqa: D205
    num, log_ratio = mask.sum().clamp(min=1), (old - rollout) * mask
    lengths = mask.sum(1).clamp(min=1)
    apart = (old.exp() - rollout.exp()).abs() * mask
    found = {
        "kl": -log_ratio.sum() / num,
        "k3_kl": ((log_ratio.exp() - log_ratio - 1) * mask).sum() / num,
        "log_ppl_diff": -(log_ratio.sum(1) / lengths).mean(),
        "probs_diff_max": apart.max(),
        "probs_diff_mean": apart.sum() / num,
    }
    return {name: float(value) for name, value in found.items()}
