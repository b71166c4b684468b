"""Which matrices of a checkpoint are held in which number format, as its ``quantization_config`` says.

Read are the conventions of Hugging Face (``fp8``, ``mxfp4``, ``awq``, ``gptq``), compressed-tensors and ModelOpt. Each
kind of linear layer is asked for in one layer in the middle, where published recipes treat all layers alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from profiles.models.layers import QuantizedWeights

if TYPE_CHECKING:
    from profiles.models.layers import WeightFormat
    from profiles.models.shape import ModelShape

_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "backbone.", "")
_MODULES: dict[str, tuple[str, ...]] = {
    "attention": ("self_attn.q_proj", "self_attn.q_b_proj"),
    "linear_mixers": ("linear_attn.out_proj", "mixer.out_proj"),
    "dense_mlp": ("mlp.down_proj",),
    "shared_experts": ("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"),
    "experts": ("mlp.experts.0.down_proj", "mlp.experts", "block_sparse_moe.experts.0.w2"),
}
_ALGORITHMS: dict[str, WeightFormat] = {
    "fp8": "fp8",
    "fp8_pb_wo": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp8": "fp8_block",
    "w4a16": "int4",
    "int4_awq": "int4",
    "w4a16_awq": "int4",
}
_LEFT_OUT = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
_MAX_PATTERN = 200


def quantized_weights(config: object, shape: ModelShape) -> QuantizedWeights | None:
    """Read the formats of a ``quantization_config``; ``None`` where there is none or it names no known format.

    Parameters
    ----------
    config
        The parsed value of the key, of any kind.
    shape
        The model whose layers it speaks of.
    """
    if not isinstance(config, Mapping):
        return None
    layer = _middle_layers(shape)
    per_layer = config.get("quantized_layers")
    found: dict[str, WeightFormat] = {}
    if isinstance(per_layer, Mapping):
        for kind, names in _names(layer).items():
            algorithm = next((per_layer[name] for name in names if name in per_layer), None)
            if isinstance(algorithm, Mapping) and (known := _algorithm(algorithm.get("quant_algo"))):
                found[kind] = known
    elif (everywhere := _format(config)) is not None:
        patterns = [p for key in _LEFT_OUT for p in _strings(config.get(key))]
        found = {k: everywhere for k, names in _names(layer).items() if not _matches(patterns, names)}
        if everywhere == "mxfp4" and config.get("quant_method") == "mxfp4":
            found = {"experts": everywhere}  # gpt-oss: the method converts experts and nothing else
    return QuantizedWeights(**found, kv_cache=_kv_cache(config)) if found else None


def _format(config: Mapping[str, object]) -> WeightFormat | None:
    """The one format of everything that is not left out."""
    named = _algorithm(config.get("quant_algo"))
    if named is not None:
        return named
    method = config.get("quant_method")
    if method == "fp8":
        return "fp8_block" if config.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq"):
        return "int4" if config.get("bits") == 4 else None
    if method == "mxfp4":
        return "mxfp4"
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    return _of_group(weights, str(config.get("format"))) if isinstance(weights, Mapping) else None


def _of_group(weights: Mapping[str, object], packing: str) -> WeightFormat | None:
    """The format of one group of compressed-tensors."""
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "int":
        return "int4" if bits == 4 else None
    if bits == 8:
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if bits == 4:
        return "mxfp4" if "mxfp4" in packing or size == 32 else "nvfp4"
    return None


def _kv_cache(config: Mapping[str, object]) -> WeightFormat | None:
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    eight_bits = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    return "fp8" if eight_bits or (isinstance(scheme, str) and scheme.lower() == "fp8") else None


def _algorithm(name: object) -> WeightFormat | None:
    return _ALGORITHMS.get(name.lower()) if isinstance(name, str) else None


def _middle_layers(shape: ModelShape) -> dict[str, int]:
    """A layer in the middle; for each kind of MLP one that has it."""
    middle = shape.num_layers // 2
    if shape.moe is None:
        return dict.fromkeys(_MODULES, middle)
    sparse = [i for i, flag in enumerate(shape.moe.moe_layers) if flag]
    dense = [i for i, flag in enumerate(shape.moe.moe_layers) if not flag] or sparse
    at = {"experts": sparse, "shared_experts": sparse, "dense_mlp": dense}
    return {kind: at[kind][len(at[kind]) // 2] if kind in at else middle for kind in _MODULES}


def _names(layers: Mapping[str, int]) -> dict[str, list[str]]:
    """Every name that a checkpoint could give a module of each kind."""
    return {
        kind: [f"{prefix}layers.{layers[kind]}.{module}" for prefix in _PREFIXES for module in modules]
        for kind, modules in _MODULES.items()
    }


def _matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    asked = list(names)
    return any(_match(pattern, name) for pattern in patterns for name in asked)


def _match(pattern: str, name: str) -> bool:
    """Whether a pattern leaves a module out: a regular expression, a wildcard, or whole words of its path in a row."""
    if pattern.startswith("re:"):
        return _safe(pattern) and re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*")
    return f".{pattern}." in f".{name}."


def _safe(pattern: str) -> bool:
    """Whether matching ends at once and raises nothing: a config may come from anywhere."""
    if len(pattern) > _MAX_PATTERN or re.search(r"\)[*+?{]", pattern) or len(re.findall(r"[*+?{]", pattern)) > 3:
        return False
    try:
        re.compile(pattern[3:])
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _strings(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
