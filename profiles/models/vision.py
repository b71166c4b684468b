"""Size of a multimodal model's towers, for images and sound: memory counts it, no price does, as steps run on text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TOWERS = ("vision_config", "audio_config")
_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers", "encoder_layers")
_WIDTH = ("embed_dim", "vt_hidden_size", "hidden_size", "d_model")  # Qwen2-VL's hidden_size is what the tower puts out
_FFN = ("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim")
_LARGEST = 1_000_000


def vision_params(config: Mapping[str, object]) -> int:
    """Parameters of the towers that a config describes; 0 without any.

    Parameters
    ----------
    config
        The whole ``config.json``, or what of it reads and writes text. What ``_hybridmap`` states
        (``vision_num_params``) comes first.

    Returns
    -------
    int
        Parameters. Not stated: ``depth (4 h^2 + 2 h f)`` of the blocks, ``f = 4 h`` where that is not given; patch
        embedding, biases and the projector to the text model are left out (Qwen3-VL-30B-A3B: 413 M of 539 M).
    """
    facts = config.get("_hybridmap")
    stated = facts.get("vision_num_params") if isinstance(facts, Mapping) else None
    if isinstance(stated, int):
        return stated
    return sum(_blocks_params(config.get(tower)) for tower in _TOWERS)


def _blocks_params(tower: object) -> int:
    if not isinstance(tower, Mapping):
        return 0
    depth, width = _first(tower, _DEPTH), _first(tower, _WIDTH)
    return depth * (4 * width**2 + 2 * width * (_first(tower, _FFN) or 4 * width))


def _first(tower: Mapping[Any, object], keys: tuple[str, ...]) -> int:
    """The first of the keys that holds a size; 0 if none does."""
    found = (tower.get(key) for key in keys)
    return next((value for value in found if type(value) is int and 0 < value < _LARGEST), 0)
