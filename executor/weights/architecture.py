"""What a weight map needs to know of a model: its Hugging Face tensors, by name, shape and layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from profiles.errors import FileFormatError, InputError, NotYetError
from profiles.models.hf_config import parse_config, shape_from_hf_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.models.shape import ModelShape

DENSE = ("llama", "qwen2", "qwen3")
FAMILIES = (*DENSE, "qwen3_moe", "mixtral")
EMBEDDING, NORM, HEAD, SCORE = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "score.weight"


SCALINGS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Ways to stretch rotary angles over longer contexts, by transformers' names, and the numbers that each needs."""


TARGETS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Projections of a layer by the names that jobs have for those with adapters."""


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters: ``W [m, n]`` becomes ``W + alpha / rank * B A`` with ``A [rank, n]`` and ``B [m, rank]``.

    Source: LoRA (Hu et al. 2021); ``targets`` are keys of ``TARGETS``.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = tuple(TARGETS)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def projections(self) -> tuple[str, ...]:
        """Those of a layer that have adapters, by the ends of their names."""
        return tuple(name for target in self.targets for name in TARGETS[target])


def is_adapter(name: str) -> bool:
    """Whether a tensor is a factor of an adapter."""
    return name.endswith((".lora_A.weight", ".lora_B.weight"))


def is_learned(name: str) -> bool:
    """Whether a model with adapters trains a tensor: the adapters, and a score head, which no base model has."""
    return is_adapter(name) or name == SCORE


@dataclass(frozen=True)
class Architecture:
    """A decoder as weight maps see it: its shape, and the constants that passes need besides.

    ``has_score`` replaces the vocabulary head by one score per token. ``rope_scaling`` has transformers' parameters,
    ``rope_type`` among them; empty where angles are not scaled. ``adapters`` are tensors of the model, too.
    ``routes_add_to_one``: a token weighs its experts among themselves, not among all.
    """

    shape: ModelShape
    has_score: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    adapters: Adapters | None = None
    routes_add_to_one: bool = True

    @property
    def adapter_scale(self) -> float:
        """What the output of an adapter is multiplied by."""
        return self.adapters.scale if self.adapters else 0.0

    @property
    def rope_type(self) -> str:
        """How rotary angles are scaled, ``default`` for not at all."""
        return str(dict(self.rope_scaling).get("rope_type", "default"))

    @property
    def model_type(self) -> str:
        return self.shape.architecture

    @property
    def hidden(self) -> int:
        return self.shape.hidden

    @property
    def num_layers(self) -> int:
        return self.shape.num_layers

    @property
    def vocab(self) -> int:
        return self.shape.vocab

    @property
    def num_heads(self) -> int:
        return self.shape.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.shape.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.shape.head_dim

    @property
    def ffn(self) -> int:
        """Width of the one MLP of a layer; where there are experts, of an expert."""
        return self.shape.moe.expert_ffn if self.shape.moe else self.shape.ffn

    @property
    def num_experts(self) -> int:
        """Experts of a layer, 0 in a dense model."""
        return self.shape.moe.num_experts if self.shape.moe else 0

    @property
    def experts_per_token(self) -> int:
        return self.shape.moe.experts_per_token if self.shape.moe else 0

    @property
    def tied(self) -> bool:
        return self.shape.tied_embeddings

    @property
    def max_length(self) -> int:
        return self.shape.max_position

    @property
    def qkv_bias(self) -> bool:
        return self.shape.qkv_bias

    @property
    def qk_norm(self) -> bool:
        return self.shape.qk_norm

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
            blocks = self._attention(layer) + self._mlp(layer)
            found += blocks + self._adapters(blocks, layer)
        found.append(Tensor(NORM, (self.hidden,), self.num_layers))
        if self.has_score:
            found.append(Tensor(SCORE, (1, self.hidden), self.num_layers))
        elif self.has_head:
            found.append(Tensor(HEAD, (self.vocab, self.hidden), self.num_layers))
        return {tensor.name: tensor for tensor in found}

    def _adapters(self, blocks: list[Tensor], layer: int) -> list[Tensor]:
        """Both factors of each projection of a layer that has an adapter."""
        has = self.adapters
        if has is None:
            return []
        shapes = {tensor.name: tensor.shape for tensor in blocks}
        found = []
        for projection in has.projections:
            name = f"model.layers.{layer}.{projection}"
            out, width = shapes[f"{name}.weight"]
            found.append(Tensor(f"{name}.lora_A.weight", (has.rank, width), layer))
            found.append(Tensor(f"{name}.lora_B.weight", (out, has.rank), layer))
        return found

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


def read_config(path: str | Path) -> Mapping[str, Any]:
    """``config.json`` of a folder, or the file itself; ``InputError`` says why it cannot be read."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    return parse_config(raw, str(file))


def read_architecture(path: str | Path, *, has_score: bool = False, adapters: Adapters | None = None) -> Architecture:
    """Read ``config.json``, or the one in the folder ``path``; ``InputError`` says what cannot run."""
    found = architecture_of(read_config(path), str(path), has_score=has_score)
    if adapters is not None and found.num_experts:
        raise NotYetError(f"{path}: adapters beside experts cannot run yet; train all weights (lora_rank 0)")
    return replace(found, adapters=adapters)


def architecture_of(document: Mapping[str, Any], source: str, *, has_score: bool = False) -> Architecture:
    """The view of a ``config.json``; ``NotYetError`` names what it has and no weight map knows."""
    kind = document.get("model_type")
    if kind not in FAMILIES:
        raise NotYetError(f"{source}: weight maps exist for {', '.join(FAMILIES)}, not for '{kind}'")
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise FileFormatError(f"{source}: rope_parameters must be an object")
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", *SCALINGS):
        raise NotYetError(f"{source}: rotary scaling '{scaling}' cannot run yet; {', '.join(SCALINGS)} can")
    shape = shape_from_hf_config(document, str(kind), source)
    if document.get("attention_bias") and kind != "qwen2":
        raise NotYetError(f"{source}: attention_bias cannot run yet")
    if shape.mlp_bias:
        raise NotYetError(f"{source}: mlp_bias cannot run yet")
    if shape.moe is not None and not all(shape.moe.moe_layers):
        raise NotYetError(f"{source}: layers with and without experts cannot run together yet")
    return Architecture(
        shape,
        has_score,
        _positive(rope.get("rope_theta", document.get("rope_theta", 10_000.0)), "rope_theta", source),
        _positive(document.get("rms_norm_eps", 1e-6), "rms_norm_eps", source),
        () if scaling == "default" else _scaling(rope, scaling, document, source),
        routes_add_to_one=kind != "qwen3_moe" or document.get("norm_topk_prob") is True,  # transformers' default: no
    )


def _scaling(rope: dict[str, Any], kind: str, document: Mapping[str, Any], source: str) -> tuple[tuple[str, Any], ...]:
    """``rope`` as pairs that can be compared, its kind under one name."""
    given = {name: value for name, value in rope.items() if name not in ("type", "rope_type", "rope_theta")}
    for key in SCALINGS[kind]:
        if key == "original_max_position_embeddings" and key not in given:
            given[key] = document.get(key, document.get("max_position_embeddings"))
        _positive(given.get(key), f"rope_scaling.{key}", source)
    return (("rope_type", kind), *sorted(given.items()))


def _positive(value: object, key: str, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise FileFormatError(f"{source}: {key} must be a positive number")
    return float(value)
