"""A transformers decoder with the head of its role, parameters named as in a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoConfig, AutoModel

from executor.engines.attention import packed_attention

if TYPE_CHECKING:
    from executor.weights.architecture import Adapters

PACKED = "hybridmap-packed"
"""Our attention, by its name among those of transformers. It has no mask of that name: for one, transformers would look
for sequences among the positions, and the host would wait for what it finds."""


def _attend(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: None,
    *,
    sequence_lengths: tuple[int, ...],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """``query [1, heads, N, D]`` and the others to ``[1, N, heads, D]``, in the form that transformers calls."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return packed_attention(q, k, v, sequence_lengths, scaling)[None], None


AttentionInterface.register(PACKED, _attend)


class AdaptedLinear(torch.nn.Linear):
    """A projection with an adapter beside it."""

    def __init__(self, given: torch.nn.Linear, adapters: Adapters) -> None:
        super().__init__(given.in_features, given.out_features, bias=given.bias is not None)
        self.lora_A = torch.nn.Linear(given.in_features, adapters.rank, bias=False)
        self.lora_B = torch.nn.Linear(adapters.rank, given.out_features, bias=False)
        self.scale = adapters.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.lora_B(self.lora_A(x))
        return super().forward(x) + self.scale * adapted


class ScoredDecoder(torch.nn.Module):
    """Tokens to logits, or to one score per token; without padding."""

    def __init__(self, config: dict[str, Any], *, has_score: bool, adapters: Adapters | None = None) -> None:
        super().__init__()
        settings = AutoConfig.for_model(**config)
        self.model = AutoModel.from_config(settings, attn_implementation=PACKED, dtype=torch.float32)  # type: ignore[no-untyped-call]
        if adapters is not None:
            for layer in self.model.layers:
                for name in adapters.projections:
                    layer.set_submodule(name, AdaptedLinear(layer.get_submodule(name), adapters))
        self.whole = torch.nn.Identity()
        """Where hidden states that tensor-parallel ranks hold a part each of come together."""
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

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, lengths: tuple[int, ...], places: torch.Tensor
    ) -> torch.Tensor:
        """Packed ``tokens [1, N]`` to what the head says at ``places [n]``: logits ``[n, V]``, or scores ``[n, 1]``.

        Under tensor parallelism logits are this rank's columns, ``[n, V / t]``.
        """
        found = self.model(input_ids=tokens, position_ids=positions, use_cache=False, sequence_lengths=lengths)
        head = self.score if self.has_score else self.lm_head
        hidden = self.whole(found.last_hidden_state)[0, places]
        outputs: torch.Tensor = head(hidden)
        return outputs


def compute_again(model: ScoredDecoder, recompute: str) -> None:
    """Have the backward pass compute whole layers again (``full``), or their attention alone (``selective``)."""
    for layer in model.model.layers if recompute != "none" else ():
        module = layer if recompute == "full" else layer.self_attn
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
