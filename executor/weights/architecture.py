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
MOST_SIZE = 10_000_000
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
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file}: not JSON ({error})") from error
    if not isinstance(document, dict):
        raise FileFormatError(f"{file}: a config is a JSON object")
    return architecture_of(document, str(file), has_score=has_score)


def architecture_of(document: dict[str, Any], source: str, *, has_score: bool = False) -> Architecture:
    """The view of a ``config.json``; ``NotYetError`` names what it has and no weight map knows."""
    kind = document.get("model_type")
    if kind not in FAMILIES:
        raise NotYetError(f"{source}: weight maps exist for {', '.join(FAMILIES)}, not for '{kind}'")
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise FileFormatError(f"{source}: rope_parameters must be an object")
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default":
        raise NotYetError(f"{source}: rotary scaling '{scaling}' cannot run yet")
    if document.get("attention_bias") and kind != "qwen2":
        raise NotYetError(f"{source}: attention_bias cannot run yet")
    hidden, heads = _size(document, "hidden_size", source), _size(document, "num_attention_heads", source)
    experts = document.get("num_local_experts") or document.get("num_experts") or 0
    width = "moe_intermediate_size" if experts and document.get("moe_intermediate_size") else "intermediate_size"
    return Architecture(
        model_type=kind,
        hidden=hidden,
        num_layers=_size(document, "num_hidden_layers", source),
        vocab=_size(document, "vocab_size", source),
        num_heads=heads,
        num_kv_heads=_size(document, "num_key_value_heads", source, heads),
        head_dim=_size(document, "head_dim", source, max(hidden // heads, 1)),
        ffn=_size(document, width, source),
        tied=bool(document.get("tie_word_embeddings", False)),
        num_experts=_size({"num_experts": experts}, "num_experts", source) if experts else 0,
        experts_per_token=_size(document, "num_experts_per_tok", source) if experts else 0,
        has_score=has_score,
        rope_theta=_positive(rope.get("rope_theta", document.get("rope_theta", 10_000.0)), "rope_theta", source),
        norm_eps=_positive(document.get("rms_norm_eps", 1e-6), "rms_norm_eps", source),
        max_length=_size(document, "max_position_embeddings", source, 2048),
    )


def _size(document: dict[str, Any], key: str, source: str, default: int | None = None) -> int:
    """A whole number from 1 to ten million; a key that is missing or null has its default, if it has one."""
    value = document.get(key)
    if value is None and default is not None:
        return default
    if key not in document:
        raise FileFormatError(f"{source}: key '{key}' is missing")
    if type(value) is not int or not 0 < value <= MOST_SIZE:
        raise FileFormatError(f"{source}: {key} must be a whole number from 1 to {MOST_SIZE:,}")
    return value


def _positive(value: object, key: str, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise FileFormatError(f"{source}: {key} must be a positive number")
    return float(value)
