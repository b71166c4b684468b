"""The models that hybridmap knows by name: facts of published configs, one file each in ``profiles/models/configs``.

Other checkpoints of the same shape are lines of ``checkpoints.json``: Hugging Face id, the name that it is ``same_as``,
and the keys of the config in which it differs. Beside Hugging Face's keys each file carries one ``_hybridmap`` object:
``hf_id``, the parameter count of the published checkpoint (``published_num_params``, null if unknown), where that count
and the config come from (``params_source``, ``config_source``), and the size of a vision tower (``vision_num_params``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import FileFormatError, UnknownNameError
from profiles.models.hf_config import load_hf_config, read_config, shape_from_hf_config
from profiles.models.hub_cache import cached_config

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

_FOLDER = Path(__file__).parent / "configs"
_CHECKPOINTS = Path(__file__).parent / "checkpoints.json"


def model_names() -> list[str]:
    """Every model of the catalogue, sorted. A name is that of Hugging Face in lower case without organisation."""
    return list(_names())


def load_model(name_or_path: str, base: Path | None = None) -> ModelShape:
    """Load a model by its catalogue name, or from a Hugging Face ``config.json``.

    Parameters
    ----------
    name_or_path
        A catalogue name, which comes first; else a path: anything that ends in ``.json``, holds a path separator
        or is a folder; else, where nothing lies there, the Hugging Face id of a known checkpoint, in any case, or one
        whose config lies in Hugging Face's cache on this machine. Nothing is fetched.
    base
        The folder that a relative path starts from; the current one if not given.

    Raises
    ------
    UnknownNameError
        Neither a name of the catalogue nor a path; the message suggests near names.
    FileFormatError
        The file at the path is no config of a supported model.
    InputError
        The path cannot be read.
    """
    if name_or_path in _names():
        return _load(name_or_path)
    path = (base or Path()) / name_or_path
    if not _looks_like_path(name_or_path, path):
        hint = "(or give the path of a config.json)"
        raise UnknownNameError("model", _one_line(name_or_path), _names(), hint)
    if not name_or_path.endswith(".json") and not os.path.exists(path):
        if _of_hub(name_or_path) is not None:
            return load_known(name_or_path)
        if (cached := cached_config(name_or_path)) is not None:
            return replace(load_hf_config(cached), name=name_or_path.rpartition("/")[2].lower())
        # A Hugging Face id has a separator too; who gave one is better served with our near names.
        hint = "(nor is there such a file or folder; give --model-config config.json, or --allow-download to fetch it)"
        raise UnknownNameError("model", _one_line(name_or_path), _names(), hint)
    return load_hf_config(path)


def load_known(name: str) -> ModelShape:
    """Load a model by its catalogue name or by the Hugging Face id of a known checkpoint, never from a path.

    Raises
    ------
    UnknownNameError
        Neither of them; the message suggests near names.
    """
    checkpoint = name if name in _names() else _of_hub(name)
    if checkpoint is None:
        raise UnknownNameError("model", _one_line(name), _names())
    return _load_checkpoint(checkpoint)


def model_config(name_or_path: str) -> Mapping[str, object]:
    """The ``config.json`` behind a model that ``load_model`` takes, by name, path or id; errors as ``read_config``."""
    if name_or_path in _names():
        return _config(name_or_path)
    checkpoint = _of_hub(name_or_path) if is_known(name_or_path) else None
    if checkpoint is not None:
        return _checkpoint_config(checkpoint)
    path = Path(name_or_path)
    cached = None if os.path.exists(path) else cached_config(name_or_path)
    return read_config(cached or path)[0]


def is_known(text: str, base: Path | None = None) -> bool:
    """Whether ``load_model`` takes ``text`` as a name or an id, and reads no file of the user for it."""
    if text in _names():
        return True
    return not os.path.exists((base or Path()) / text) and _of_hub(text) is not None


def checkpoint_called(folder: str) -> str | None:
    """The Hugging Face id of the known checkpoint that a folder of this name holds, if any; in any case."""
    return next((known for known in _checkpoints() if known.split("/")[1].lower() == folder.lower()), None)


def checkpoint_entries() -> dict[str, str]:
    """The Hugging Face id of every known checkpoint to the catalogue name whose shape it has."""
    return {known: str(changes["same_as"]) for known, changes in _checkpoints().items()}


def published_num_params(name: str) -> int | None:
    """Parameters of the published checkpoint; ``None`` if only a rounded count is known.

    Raises
    ------
    UnknownNameError
        The catalogue has no such model.
    """
    count = _fact(name, "published_num_params")
    if count is not None and type(count) is not int:
        raise FileFormatError(f"{name}: published_num_params must be an integer or null, got {count!r}")
    return count


def hf_id(name: str) -> str:
    """Hugging Face id of the checkpoint that the catalogue entry describes.

    Raises
    ------
    UnknownNameError
        The catalogue has no such model.
    """
    return str(_fact(name, "hf_id"))


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.json")))


@cache
def _load(name: str) -> ModelShape:
    return shape_from_hf_config(_config(name), name, f"catalogue model {name}")


@cache
def _config(name: str) -> Mapping[str, object]:
    if name not in _names():
        raise UnknownNameError("model", _one_line(name), _names())
    return read_config(_FOLDER / f"{name}.json")[0]


def _of_hub(text: str) -> str | None:
    """The known checkpoint that a Hugging Face id names, as ``checkpoints.json`` spells it, or a catalogue name."""
    organisation, _, model = text.partition("/")
    if not organisation or not model or "/" in model:
        return None
    found = next((known for known in _checkpoints() if known.lower() == text.lower()), None)
    if found is None and model.lower() in _names() and hf_id(model.lower()).lower() == text.lower():
        return model.lower()
    return found


@cache
def _load_checkpoint(checkpoint: str) -> ModelShape:
    if checkpoint in _names():
        return _load(checkpoint)
    name = checkpoint.split("/")[1].lower()
    return shape_from_hf_config(_checkpoint_config(checkpoint), name, f"checkpoint {checkpoint}")


def _checkpoint_config(checkpoint: str) -> Mapping[str, object]:
    """The config of the entry that a checkpoint is the same as, with the keys in which it differs."""
    if checkpoint in _names():
        return _config(checkpoint)
    changes = dict(_checkpoints()[checkpoint])
    entry = str(changes.pop("same_as"))
    config = dict(_config(entry))
    facts = dict(config["_hybridmap"]) if isinstance(config["_hybridmap"], Mapping) else {}
    facts |= {"hf_id": checkpoint, "same_as": entry}
    if "vision_num_params" in changes:
        facts["vision_num_params"] = changes.pop("vision_num_params")
    text = config.get("text_config")
    for key, value in changes.items():
        if isinstance(text, Mapping) and key != "quantization_config":
            text = {**text, key: value}
        else:
            config[key] = value
    return {**config, **({"text_config": text} if text else {}), "_hybridmap": facts}


@cache
def _checkpoints() -> Mapping[str, Mapping[str, object]]:
    return json.loads(_CHECKPOINTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _fact(name: str, key: str) -> object:
    facts = _config(name).get("_hybridmap")
    if not isinstance(facts, Mapping) or key not in facts:
        raise FileFormatError(f"catalogue model {name}: _hybridmap lacks {key}")
    return facts[key]


def _looks_like_path(text: str, path: Path) -> bool:
    if not text:
        return False  # joined to base it would name base itself
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    if text.endswith(".json") or any(separator in text for separator in separators):
        return True
    return os.path.isdir(path)  # unlike Path.is_dir, false for names too long or with a null byte


def _one_line(text: str, limit: int = 80) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
