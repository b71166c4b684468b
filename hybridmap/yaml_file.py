"""Reading a YAML file that a person wrote: one clear message for whatever can be wrong with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import yaml

from profiles.errors import FileFormatError, InputError
from profiles.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = MIB


class _StrictLoader(yaml.SafeLoader):
    """``SafeLoader`` that refuses a key given twice: YAML would take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> object:
    """Parse a YAML file of at most 1 MiB.

    Raises
    ------
    InputError
        There is no such file, or it cannot be read.
    FileFormatError
        It is too large, not UTF-8 or not YAML; the message has line and column.
    """
    text = _read_text(path)
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise FileFormatError(f"{path}: {place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise FileFormatError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise FileFormatError(f"{path}: nested too deep") from None
    except ValueError as error:  # a number or a date that Python cannot hold
        raise FileFormatError(f"{path}: not YAML: {error}") from None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > MAX_BYTES:
        raise FileFormatError(f"{path}: larger than {MAX_BYTES // MIB} MiB, which no job file is")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not UTF-8 text (byte {error.start})") from None


def write_yaml(path: Path, document: dict[str, Any]) -> None:
    """Write a mapping as YAML, the whole file or none of it."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(yaml.safe_dump(document, sort_keys=False, width=110), encoding="utf-8")
    os.replace(aside, path)
