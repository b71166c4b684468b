"""The models that hybridmap knows by name: facts of published configs, one file each in ``profiles/models``.

Beside Hugging Face's keys each file carries one ``_hybridmap`` object: ``hf_id``, the parameter count of the
published checkpoint (``published_num_params``, null if unknown) and where that count comes from (``params_source``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import FileFormatError, UnknownNameError
from profiles.models.hf_config import load_hf_config, read_config, shape_from_hf_config

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

_FOLDER = Path(__file__).parent / "configs"


def model_names() -> list[str]:
    """Every model of the catalogue, sorted. A name is that of Hugging Face in lower case without organisation."""
    return list(_names())


def load_model(name_or_path: str, base: Path | None = None) -> ModelShape:
    """Load a model by its catalogue name, or from a Hugging Face ``config.json``.

    Parameters
    ----------
    name_or_path
        A catalogue name, which comes first; else a path: anything that ends in ``.json``, holds a path separator
        or is a folder.
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
        # A Hugging Face id has a separator too; who gave one is better served with our near names.
        raise UnknownNameError("model", _one_line(name_or_path), _names(), "(nor is there such a file or folder)")
    return load_hf_config(path)


def model_config(name_or_path: str) -> Mapping[str, object]:
    """The ``config.json`` behind a model that ``load_model`` takes, by name or path; errors as ``read_config``."""
    return _config(name_or_path) if name_or_path in _names() else read_config(Path(name_or_path))[0]


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
