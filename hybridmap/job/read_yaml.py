"""Reading a YAML file that a person wrote: one clear message for whatever can be wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.errors import FileFormatError, InputError
from profiles.units import MIB
from profiles.yaml_text import MAX_BYTES, parse_yaml

if TYPE_CHECKING:
    from pathlib import Path


def read_yaml(path: Path) -> object:
    """Parse a YAML file of at most 1 MiB.

    Raises
    ------
    InputError
        There is no such file, or it cannot be read.
    FileFormatError
        It is too large, not UTF-8 or no YAML that ``parse_yaml`` takes; the message has line and column.
    """
    return parse_yaml(_read_text(path), str(path))


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
