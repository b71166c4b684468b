"""A transformers decoder with the head of its role, parameters named as in a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from executor.engines.torch_native.decoder import positions_of


class ScoredDecoder(torch.nn.Module):
    """Tokens to logits, or to one score per token."""

    def __init__(self, config: dict[str, Any], *, has_score: bool) -> None:
        super().__init__()
        settings = AutoConfig.for_model(**config)
        self.model = AutoModel.from_config(settings, attn_implementation="sdpa", dtype=torch.float32)  # type: ignore[no-untyped-call]
        self.has_score = has_score
        if has_score:
            self.score = torch.nn.Linear(settings.hidden_size, 1, bias=False)
        elif not settings.tie_word_embeddings:
            self.lm_head = torch.nn.Linear(settings.hidden_size, settings.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``tokens [B, T]``, padded on either side where ``mask`` is false, to ``[B, T, V]`` or ``[B, T, 1]``."""
        found = self.model(
            input_ids=tokens, attention_mask=mask.long(), position_ids=positions_of(mask), use_cache=False
        )
        hidden: torch.Tensor = found.last_hidden_state
        if self.has_score:
            return torch.nn.functional.linear(hidden, self.score.weight)
        head = self.lm_head.weight if hasattr(self, "lm_head") else self.model.embed_tokens.weight
        return torch.nn.functional.linear(hidden, head)
