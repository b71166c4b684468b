"""Shapes of the architectures of ``architectures.yaml``, and of a GPT that is described by its sizes in words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from profiles.models.layers import LinearShape, MlaShape, MoeShape
from profiles.models.shape import ModelShape

_FILE = Path(__file__).parent / "architectures.yaml"
# What the families have in common that no line of the file repeats.
_FAMILY: dict[str, dict[str, Any]] = {
    "opt": {"gated_mlp": False, "tied_embeddings": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "gptj": {"gated_mlp": False, "mlp_bias": True, "norms_per_layer": 1},  # attention and MLP share one norm
    "gpt_neox": {"gated_mlp": False, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "gpt": {"gated_mlp": False, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "bloom": {"gated_mlp": False, "tied_embeddings": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "falcon": {"gated_mlp": False},
    "nemotron": {"gated_mlp": False},
}
_IN_WORDS = re.compile(r"^\s*GPT\b[^(]*\((?P<sizes>[^)]*)\)\s*$", re.IGNORECASE)
_SIZE = {
    "hidden": re.compile(r"hidden(?:[ _]size)?\s*[:=]?\s*([\d,]*\d)|([\d,]*\d)\s*hidden", re.IGNORECASE),
    "num_layers": re.compile(r"([\d,]*\d)\s*(?:layers|blocks)|layers?\s*[:=]?\s*([\d,]*\d)", re.IGNORECASE),
    "num_heads": re.compile(r"([\d,]*\d)\s*(?:attention )?heads|heads?\s*[:=]?\s*([\d,]*\d)", re.IGNORECASE),
    "vocab": re.compile(r"vocab\w*(?:[ _]size)?\s*[:=]?\s*([\d,]*\d)", re.IGNORECASE),
}


@cache
def other_architectures() -> dict[str, ModelShape]:
    """Every shape of ``architectures.yaml`` by its name."""
    content = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: _shape(name, dict(fields)) for name, fields in content.items()}


def gpt_in_words(text: str) -> ModelShape | None:
    """A GPT from "GPT 1.7B (hidden 2048, 24 layers, 16 heads, vocabulary 131072)"; ``None`` for other texts.

    As Megatron-LM's GPT: four times ``hidden`` in the MLP without gate, biases, and a head of its own: only so do the
    sizes of Megatron-LM's weak-scaling table come out as printed (1.7B, 7.1B, ... 462B).
    """
    match = _IN_WORDS.match(text)
    if match is None:
        return None
    # "24 layers, 16 heads" reads the same with commas inside numbers removed, "131,072" only so.
    sizes = re.sub(r"(?<=\d),(?=\d{3}\b)", "", match["sizes"])
    found = {name: pattern.search(sizes) for name, pattern in _SIZE.items()}
    values = {name: int(next(g for g in hit.groups() if g)) for name, hit in found.items() if hit}
    if len(values) != len(_SIZE):
        return None
    return _shape(text.strip(), {"architecture": "gpt", **values})


def _shape(name: str, fields: dict[str, Any]) -> ModelShape:
    fields.pop("note", None)
    experts, dense = fields.pop("experts", None), fields.pop("dense_layers", 0)
    if experts:
        routed, chosen, width, shared = experts
        mixtures = tuple(layer >= dense for layer in range(fields["num_layers"]))
        fields["moe"] = MoeShape(routed, chosen, width, shared, False, False, mixtures)
    for part, kind in (("mla", MlaShape), ("linear", LinearShape)):
        if part in fields:
            fields[part] = kind(**fields[part])
    hidden, heads = fields["hidden"], fields["num_heads"]
    given = {"num_kv_heads": heads, "ffn": 4 * hidden, "max_position": 2048, **_FAMILY.get(fields["architecture"], {})}
    given["head_dim"] = hidden // heads
    return ModelShape(name=name, **{**given, **fields})
