"""Causal attention over packed sequences: each one by torch's fused kernel, without a mask of all by all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence


def packed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], scale: float | None = None
) -> torch.Tensor:
    """``q [N, heads, D]`` on ``k`` and ``v [N, kv heads, D]`` to ``[N, heads, D]``; a token sees its own sequence.

    ``lengths`` are the sequences' in order, ``N`` together. ``scale`` as in torch: ``D ** -0.5`` unless given.
    """
    shared = {"is_causal": True, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    parts = zip(*(x.transpose(0, 1).split(list(lengths), dim=1) for x in (q, k, v)), strict=True)
    mixed = [F.scaled_dot_product_attention(*(x[None] for x in part), **shared)[0] for part in parts]  # type: ignore[arg-type]
    return torch.cat(mixed, dim=1).transpose(0, 1)
