"""Read a model's shape from a Hugging Face ``config.json``: the file, the family, one line for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from pydantic import ValidationError

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models.hf_families import BY_CLASS, FAMILIES, REFUSED, TEXT_OF, THINKERS
from profiles.models.quantization import quantized_weights
from profiles.models.vision import vision_params
from profiles.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from profiles.models.shape import ModelShape

MAX_CONFIG_BYTES = 4 * MIB


def shape_from_hf_config(config: Mapping[str, object], name: str, source: str) -> ModelShape:
    """Make the shape that a Hugging Face config describes.

    Parameters
    ----------
    config
        The parsed ``config.json``; every key without bearing on the shape is ignored.
    name
        What to call the model.
    source
        Where the config came from, for messages.

    Raises
    ------
    UnknownNameError
        The architecture is not supported; the message lists those that are.
    FileFormatError
        Not a mapping, or a key is missing, of the wrong type, out of range or in contradiction to another.
    """
    if not isinstance(config, Mapping):
        raise FileFormatError(f"{source}: a config must be a JSON object, not {_short(config)}")
    config = _thinker_of(config, source)
    family, text = _family_of(config, source)
    try:
        shape = FAMILIES[family].model_validate(dict(text)).shape(name, family)
        weights = quantized_weights(text.get("quantization_config"), shape)
        return replace(shape, weights=weights, vision_params=vision_params(config))
    except ValidationError as error:
        _refuse(error, family, source)
    except InputError as error:
        raise FileFormatError(f"{source}: {error}") from None


def load_hf_config(path: Path) -> ModelShape:
    """Read the shape from a ``config.json``, or from the folder that holds one; the folder or file names the model.

    Raises
    ------
    InputError
        There is no such file, it cannot be read, or it is larger than 4 MiB.
    FileFormatError
        It is not JSON, or not a config that ``shape_from_hf_config`` accepts.
    """
    config, file = read_config(path)
    return shape_from_hf_config(config, config_name(file), str(file))


def read_config(path: Path) -> tuple[Mapping[str, object], Path]:
    """What a ``config.json`` holds, or the one in the folder ``path``, and which file it was.

    Raises
    ------
    InputError
        There is no such file, it cannot be read, or it is larger than 4 MiB.
    FileFormatError
        It is not JSON, or not an object.
    """
    try:
        path = path / "config.json" if path.is_dir() else path
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the model config {_short(str(path), 300)}: {reason}") from None
    return parse_config(raw, str(path)), path


def config_name(file: Path) -> str:
    """What a model is called whose config is ``file``: its folder, or the file where that has a name of its own."""
    return file.resolve().parent.name if file.name == "config.json" else file.stem


def parse_config(raw: bytes, source: str) -> Mapping[str, object]:
    """Parse the bytes of a config file, which must hold one JSON object of at most 4 MiB.

    Raises
    ------
    InputError
        There are more than 4 MiB.
    FileFormatError
        It is not JSON, or not an object.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputError(f"{source}: larger than {MAX_CONFIG_BYTES} bytes, which no model config is")
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number of thousands of digits, or too deep
        raise FileFormatError(f"{source}: not a JSON file: {_short(str(error))}") from None
    if not isinstance(config, dict):
        raise FileFormatError(f"{source}: a config must be a JSON object, not {_short(config)}")
    return config


def _thinker_of(config: Mapping[str, object], source: str) -> Mapping[str, object]:
    """The part of a model that also speaks which reads and writes text; any other config as it is."""
    if config.get("model_type") not in THINKERS:
        return config
    thinker = config.get("thinker_config")
    if not isinstance(thinker, Mapping):
        raise FileFormatError(f"{source}: thinker_config must be an object, got {_short(thinker)}")
    beside = {key: config[key] for key in ("_hybridmap", "quantization_config") if key in config}
    return {"model_type": f"{config['model_type']}_thinker", **thinker, **beside}


def _family_of(config: Mapping[str, object], source: str) -> tuple[str, Mapping[str, object]]:
    """Find the family of the text model, and the mapping that holds its keys."""
    family, classes = config.get("model_type"), config.get("architectures")
    if family is None and isinstance(classes, list) and classes and isinstance(classes[0], str):
        family = BY_CLASS.get(classes[0].lower(), classes[0])
    if not isinstance(family, str):
        raise FileFormatError(f"{source}: model_type must be a string, got {_short(family)}")
    if family in TEXT_OF:
        text = config.get("text_config")
        outer = {key: value for key, value in config.items() if key not in ("model_type", "text_config")}
        return TEXT_OF[family], {**outer, **text} if isinstance(text, Mapping) else outer
    if family in REFUSED:
        raise FileFormatError(f"{source}: {family} is not supported: {REFUSED[family]}")
    if family not in FAMILIES:
        known = sorted({name.removesuffix("_text") for name in (*FAMILIES, *TEXT_OF, *THINKERS)})
        shown, supported = _short(family)[1:-1], ", ".join(known)
        error = UnknownNameError("architecture", shown, known, f"(in {source})")
        if "; known: " in str(error):
            raise error
        # A near name is no help by itself: another generation of a family is another architecture.
        raise UnknownNameError("architecture", shown, known, f"(in {source}; supported: {supported})")
    return family, config


def _refuse(error: ValidationError, family: str, source: str) -> NoReturn:
    """Name the first key that is wrong, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        raise FileFormatError(f"{source}: {key} is missing, which a {family} config needs") from None
    raise FileFormatError(f"{source}: {key}={_short(first['input'])}: {first['msg']}") from None


def _short(value: object, limit: int = 60) -> str:
    """One printable line for a value of any kind and size."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of more than 128 bits"  # Python refuses to print the longest ones
    text = ascii(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= limit else text[:limit] + "..."
