"""Rotary angles for engines that make their own, scaled by transformers' functions where a model scales them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from profiles.errors import InputError

if TYPE_CHECKING:
    from executor.weights.architecture import Architecture


def frequencies(arch: Architecture, device: torch.device) -> tuple[torch.Tensor, float]:
    """Radians a token ``[head_dim / 2]``, fp32, and what cosine and sine are multiplied by."""
    if not arch.rope_scaling:
        half = torch.arange(0, arch.head_dim, 2, dtype=torch.float32, device=device) / arch.head_dim
        return arch.rope_theta**-half, 1.0
    return _scaled(arch, device)


@lru_cache(maxsize=8)
def _scaled(arch: Architecture, device: torch.device) -> tuple[torch.Tensor, float]:
    """Made once a device: on the way there the host would wait in every layer."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = dict(arch.rope_scaling)
    config = LlamaConfig(
        hidden_size=arch.hidden,
        num_attention_heads=arch.num_heads,
        head_dim=arch.head_dim,
        max_position_embeddings=arch.max_length,
        rope_parameters={"rope_theta": arch.rope_theta, **given},
    )
    found, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](config)
    return found.to(device=device, dtype=torch.float32), float(factor)


def require_length(arch: Architecture, num_tokens: int) -> None:
    """Raise ``InputError`` for sequences whose angles ``dynamic`` scaling would change while they grow.

    Up to the model's own length it changes none, and every engine agrees.
    """
    if arch.rope_type == "dynamic" and num_tokens > arch.max_length:
        raise InputError(
            f"sequences of {num_tokens} tokens with dynamic rotary scaling cannot run: beyond the model's "
            f"{arch.max_length} its angles depend on how long a sequence has become; yarn scales them once"
        )
