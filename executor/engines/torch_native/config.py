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
MOST_SIZE = 10_000_000


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
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file}: not JSON ({error})") from error
    if not isinstance(document, dict):
        raise FileFormatError(f"{file}: a config is a JSON object")
    return config_from(document, str(file))


def config_from(document: dict[str, Any], source: str) -> DecoderConfig:
    """The decoder's view of a ``config.json``; keys that are missing or unsupported are named with ``source``."""
    if document.get("model_type") not in MODEL_TYPES:
        kind = document.get("model_type")
        raise NotYetError(f"{source}: the torch-native engine runs {', '.join(MODEL_TYPES)}, not '{kind}'")
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise FileFormatError(f"{source}: rope_parameters must be an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise NotYetError(f"{source}: rotary scaling '{kind}' cannot run yet in the torch-native engine")
    if document.get("attention_bias") and document["model_type"] != "qwen2":
        raise NotYetError(f"{source}: attention_bias cannot run yet in the torch-native engine")
    hidden, heads = _size(document, "hidden_size", source), _size(document, "num_attention_heads", source)
    return DecoderConfig(
        model_type=document["model_type"], hidden=hidden, num_layers=_size(document, "num_hidden_layers", source),
        vocab=_size(document, "vocab_size", source), num_heads=heads,
        num_kv_heads=_size(document, "num_key_value_heads", source, heads),
        head_dim=_size(document, "head_dim", source, max(hidden // heads, 1)),
        ffn=_size(document, "intermediate_size", source),
        rope_theta=_positive(rope.get("rope_theta", document.get("rope_theta", 10_000.0)), "rope_theta", source),
        norm_eps=_positive(document.get("rms_norm_eps", 1e-6), "rms_norm_eps", source),
        tied_embeddings=bool(document.get("tie_word_embeddings", False)),
    )  # fmt: skip


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
