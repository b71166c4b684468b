"""Tiny decoders that an engine is probed with beside the models that a profile is for, to tell its constants apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPE_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
}
"""Columns of table ``engine_step`` that say which model a row is of, and their names in a Hugging Face config."""


def ours() -> list[dict[str, Any]]:
    """Tiny Llama decoders that differ in depth and width."""
    return [tiny_config(layers=4, hidden=64), tiny_config(layers=2, hidden=128)]


def is_ours(row: Mapping[str, Any]) -> bool:
    """Whether a row of ``engine_step`` is of a model of ours, not of one that the profile is for."""
    shapes = [{name: config[theirs] for name, theirs in SHAPE_KEYS.items()} for config in ours()]
    return any(all(row[name] == size for name, size in shape.items()) for shape in shapes)


def tiny_config(*, layers: int, hidden: int, vocab: int = 64) -> dict[str, Any]:
    """The config of a Llama decoder with heads of 16 and half as many KV heads."""
    heads = hidden // 16
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 2, 1),
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": vocab,
    }
