"""A transformers decoder with the head of its role, parameters named as in a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel

from executor.engines.native.decoder import positions_of


class ScoredDecoder(torch.nn.Module):
    """Tokens to logits, or to one score per token."""

    def __init__(self, config: dict[str, Any], *, has_score: bool) -> None:
        super().__init__()
        settings = AutoConfig.for_model(**config)
        self.model = AutoModel.from_config(settings, attn_implementation="sdpa", dtype=torch.float32)  # type: ignore[no-untyped-call]
        self.has_score = has_score
        self.tied = not has_score and bool(settings.tie_word_embeddings)
        if has_score:
            self.score = torch.nn.Linear(settings.hidden_size, 1, bias=False)
        else:
            self.lm_head = torch.nn.Linear(settings.hidden_size, settings.vocab_size, bias=False)
            self.tie()

    def tie(self) -> None:
        """Make a tied head the embedding's own parameter; again after something replaced parameters."""
        if self.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def compute_buffers(self, device: torch.device) -> None:
        """Make what is neither weight nor in a checkpoint, which a model made without memory has not: rotary angles."""
        with device:
            self.model.rotary_emb = type(self.model.rotary_emb)(self.model.config)
        left = [name for name, buffer in self.named_buffers() if not name.startswith("model.rotary_emb.")]
        assert not left, f"{self.model.config.model_type} has buffers that nobody computes: {left}"

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``tokens [B, T]``, padded on either side where ``mask`` is false, to logits or to scores ``[B, T, 1]``.

        Logits are ``[B, T, V]``; under tensor parallelism this rank's columns of them, ``[B, T, V / t]``.
        """
        found = self.model(
            input_ids=tokens, attention_mask=mask.long(), position_ids=positions_of(mask), use_cache=False
        )
        head = self.score if self.has_score else self.lm_head
        outputs: torch.Tensor = head(found.last_hidden_state)
        return outputs


def compute_again(model: ScoredDecoder, recompute: str) -> None:
    """Have the backward pass compute whole layers again (``full``), or their attention alone (``selective``)."""
    for layer in model.model.layers if recompute != "none" else ():
        module = layer if recompute == "full" else layer.self_attn
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
