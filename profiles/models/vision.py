"""Size of the vision tower of a multimodal model, which memory counts and no price does: RL steps run on text."""

from __future__ import annotations

from collections.abc import Mapping

_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_WIDTH = ("embed_dim", "vt_hidden_size", "hidden_size")  # Qwen2-VL's hidden_size is what the tower puts out
_FFN = ("intermediate_size", "vt_intermediate_size")
_LARGEST = 1_000_000


def vision_params(config: Mapping[str, object]) -> int:
    """Parameters of the vision tower that a config describes; 0 without one.

    Parameters
    ----------
    config
        The whole ``config.json``. What ``_hybridmap`` states (``vision_num_params``) comes first.

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
    tower = config.get("vision_config")
    if not isinstance(tower, Mapping):
        return 0
    depth, width = _first(tower, _DEPTH), _first(tower, _WIDTH)
    return depth * (4 * width**2 + 2 * width * (_first(tower, _FFN) or 4 * width))


def _first(tower: Mapping[str, object], keys: tuple[str, ...]) -> int:
    """The first of the keys that holds a size; 0 if none does."""
    found = (tower.get(key) for key in keys)
    return next((value for value in found if type(value) is int and 0 < value < _LARGEST), 0)
