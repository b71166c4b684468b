"""What the decoder needs to know of a model, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import FileFormatError, InputError, NotYetError

if TYPE_CHECKING:
    from simulator.groups import Degrees

MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and constants of a Llama or Qwen decoder; names as in ``profiles.model_shape``."""

    model_type: str
    hidden: int
    num_layers: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    rope_theta: float
    norm_eps: float
    tied_embeddings: bool

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"

    def require_divisible(self, x: Degrees) -> None:
        """Raise ``InputError`` unless the layers divide by the pipeline degree and heads and vocabulary by the rest."""
        if self.num_layers % x.p:
            raise InputError(f"{self.num_layers} layers do not divide into {x.p} pipeline stages")
        for name in ("num_heads", "num_kv_heads", "ffn", "vocab"):
            if getattr(self, name) % x.t:
                raise InputError(f"{name} {getattr(self, name)} does not divide by tensor-parallel degree {x.t}")


def load_config(path: str | Path) -> DecoderConfig:
    """Read ``config.json``, or the one in the folder ``path``."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileFormatError(f"{file}: not JSON ({error})") from error
    return config_from(document, str(file))


def config_from(document: dict[str, Any], source: str) -> DecoderConfig:
    """The decoder's view of a ``config.json``; keys that are missing or unsupported are named with ``source``."""
    if document.get("model_type") not in MODEL_TYPES:
        kind = document.get("model_type")
        raise NotYetError(f"{source}: the torch-native engine runs {', '.join(MODEL_TYPES)}, not '{kind}'")
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise NotYetError(f"{source}: rotary scaling '{kind}' cannot run yet in the torch-native engine")
    if document.get("attention_bias") and document["model_type"] != "qwen2":
        raise NotYetError(f"{source}: attention_bias cannot run yet in the torch-native engine")
    try:
        hidden, heads = document["hidden_size"], document["num_attention_heads"]
        return DecoderConfig(
            model_type=document["model_type"], hidden=hidden, num_layers=document["num_hidden_layers"],
            vocab=document["vocab_size"], num_heads=heads,
            num_kv_heads=document.get("num_key_value_heads") or heads,
            head_dim=document.get("head_dim") or hidden // heads, ffn=document["intermediate_size"],
            rope_theta=float(rope.get("rope_theta", document.get("rope_theta", 10_000.0))),
            norm_eps=float(document.get("rms_norm_eps", 1e-6)),
            tied_embeddings=bool(document.get("tie_word_embeddings", False)),
        )  # fmt: skip
    except KeyError as error:
        raise FileFormatError(f"{source}: key {error} is missing") from error
