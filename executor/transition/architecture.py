"""What a weight map needs to know of a model: its Hugging Face tensors, by name, shape and layer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from profiles.errors import FileFormatError, InputError, NotYetError

if TYPE_CHECKING:
    from collections.abc import Mapping

DENSE = ("llama", "qwen2", "qwen3")
FAMILIES = (*DENSE, "qwen3_moe", "mixtral")
EMBEDDING, NORM, HEAD, SCORE = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "score.weight"


@dataclass(frozen=True)
class Architecture:
    """Shape and constants of a decoder. ``num_experts`` 0 is a dense model; ``ffn`` is then of the one MLP of a layer,
    else of an expert. ``has_score`` replaces the vocabulary head by one score per token."""  # noqa: D205, D209

    model_type: str
    hidden: int
    num_layers: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    tied: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    has_score: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    max_length: int = 2048

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.model_type in ("qwen3", "qwen3_moe")

    @property
    def has_head(self) -> bool:
        """Whether the vocabulary head is a tensor of its own."""
        return not self.tied and not self.has_score

    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor of a checkpoint, by name, in order."""
        return _tensors_of(self)

    def _made(self) -> dict[str, Tensor]:
        found = [Tensor(EMBEDDING, (self.vocab, self.hidden), -1)]
        for layer in range(self.num_layers):
            found += self._attention(layer) + self._mlp(layer)
        found.append(Tensor(NORM, (self.hidden,), self.num_layers))
        if self.has_score:
            found.append(Tensor(SCORE, (1, self.hidden), self.num_layers))
        elif self.has_head:
            found.append(Tensor(HEAD, (self.vocab, self.hidden), self.num_layers))
        return {tensor.name: tensor for tensor in found}

    def expert_names(self, layer: int, expert: int) -> tuple[str, str, str]:
        """Gate, up and down projection of an expert."""
        if self.model_type == "mixtral":
            at = f"model.layers.{layer}.block_sparse_moe.experts.{expert}."
            return f"{at}w1.weight", f"{at}w3.weight", f"{at}w2.weight"
        return mlp_names(f"model.layers.{layer}.mlp.experts.{expert}.")

    def router_name(self, layer: int) -> str:
        """The matrix that chooses experts."""
        block = "block_sparse_moe" if self.model_type == "mixtral" else "mlp"
        return f"model.layers.{layer}.{block}.gate.weight"

    def _attention(self, layer: int) -> list[Tensor]:
        at, h = f"model.layers.{layer}.", self.hidden
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        found = [
            Tensor(f"{at}input_layernorm.weight", (h,), layer),
            Tensor(f"{at}post_attention_layernorm.weight", (h,), layer),
            Tensor(f"{at}self_attn.o_proj.weight", (h, q), layer),
        ]
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            found.append(Tensor(f"{at}self_attn.{name}_proj.weight", (width, h), layer))
            if self.qkv_bias:
                found.append(Tensor(f"{at}self_attn.{name}_proj.bias", (width,), layer))
            if self.qk_norm and name != "v":
                found.append(Tensor(f"{at}self_attn.{name}_norm.weight", (self.head_dim,), layer))
        return found

    def _mlp(self, layer: int) -> list[Tensor]:
        h, f = self.hidden, self.ffn
        if not self.num_experts:
            names = [mlp_names(f"model.layers.{layer}.mlp.")]
        else:
            names = [self.expert_names(layer, expert) for expert in range(self.num_experts)]
        shapes = ((f, h), (f, h), (h, f))
        found = [Tensor(name, shape, layer) for three in names for name, shape in zip(three, shapes, strict=True)]
        if self.num_experts:
            found.append(Tensor(self.router_name(layer), (self.num_experts, h), layer))
        return found


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint. ``layer`` is -1 for the embedding, ``num_layers`` for what follows the last layer."""

    name: str
    shape: tuple[int, ...]
    layer: int


@lru_cache(maxsize=64)
def _tensors_of(arch: Architecture) -> Mapping[str, Tensor]:
    return MappingProxyType(arch._made())  # noqa: SLF001


def mlp_names(at: str) -> tuple[str, str, str]:
    """Gate, up and down projection under a prefix."""
    return f"{at}gate_proj.weight", f"{at}up_proj.weight", f"{at}down_proj.weight"


def read_architecture(path: str | Path, *, has_score: bool = False) -> Architecture:
    """Read ``config.json``, or the one in the folder ``path``; ``InputError`` says what cannot run."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileFormatError(f"{file}: not JSON ({error})") from error
    return architecture_of(document, str(file), has_score=has_score)


def architecture_of(document: dict[str, Any], source: str, *, has_score: bool = False) -> Architecture:
    """The view of a ``config.json``; ``NotYetError`` names what it has and no weight map knows."""
    kind = document.get("model_type")
    if kind not in FAMILIES:
        raise NotYetError(f"{source}: weight maps exist for {', '.join(FAMILIES)}, not for '{kind}'")
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default":
        raise NotYetError(f"{source}: rotary scaling '{scaling}' cannot run yet")
    if document.get("attention_bias") and kind != "qwen2":
        raise NotYetError(f"{source}: attention_bias cannot run yet")
    try:
        hidden, heads = document["hidden_size"], document["num_attention_heads"]
        experts = document.get("num_local_experts") or document.get("num_experts") or 0
        return Architecture(
            model_type=kind, hidden=hidden, num_layers=document["num_hidden_layers"], vocab=document["vocab_size"],
            num_heads=heads, num_kv_heads=document.get("num_key_value_heads") or heads,
            head_dim=document.get("head_dim") or hidden // heads,
            ffn=(document.get("moe_intermediate_size") if experts else None) or document["intermediate_size"],
            tied=bool(document.get("tie_word_embeddings", False)), num_experts=experts,
            experts_per_token=document.get("num_experts_per_tok", 0) if experts else 0, has_score=has_score,
            rope_theta=float(rope.get("rope_theta", document.get("rope_theta", 10_000.0))),
            norm_eps=float(document.get("rms_norm_eps", 1e-6)),
            max_length=int(document.get("max_position_embeddings", 2048)),
        )  # fmt: skip
    except KeyError as error:
        raise FileFormatError(f"{source}: key {error} is missing") from error
