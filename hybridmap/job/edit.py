"""Settings of a job by dotted path: ``workload.response_length=8192``, ``cluster.0.nodes=8``."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.yaml_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN, CLOSE = "[{(", "]})"
MOST_DIGITS = 9
"""Of an entry's number; Python refuses to read thousands of them."""


@dataclass(frozen=True)
class Setting:
    """A place in the job file and the values to put there, one after another."""

    path: str
    values: tuple[Any, ...]


def parse_setting(text: str) -> Setting:
    """Read ``path=value,value``; a comma inside brackets belongs to its value. Raises ``InputError``."""
    path, sign, rest = text.partition("=")
    if not sign or not path.strip() or not rest.strip():
        raise InputError(f"--set {text}: expected KEY=VALUE or KEY=VALUE,VALUE, such as workload.prompts=256,512")
    values = []
    for part in _split(rest):
        values.append(parse_yaml(part, f"--set {text}: '{part}' is no value"))
    return Setting(path.strip(), tuple(values))


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in OPEN) - (character in CLOSE)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def combinations(settings: Sequence[Setting], most: int) -> list[dict[str, Any]]:
    """Every combination of the values, the last setting changing fastest; ``InputError`` if more than ``most``."""
    paths = [setting.path for setting in settings]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError(f"--set {twice} is given twice; list its values in one, {twice}=A,B")
    count = 1
    for setting in settings:
        count *= len(setting.values)
    if count > most:
        raise InputError(
            f"{count:,} combinations are {count:,} searches, at most {most} in one call; list fewer values"
        )
    return [dict(zip(paths, values, strict=True)) for values in itertools.product(*(s.values for s in settings))]


def with_settings(raw: object, values: dict[str, Any]) -> object:
    """A copy of a raw job with values put in place; missing mappings on the way are made.

    Raises ``InputError`` where the path runs through what is neither a mapping nor a list, or past a list's end.
    """
    document = copy.deepcopy(raw)
    for path, value in values.items():
        _put(document, path, value)
    return document


def _put(document: object, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    at: Any = document
    for i, part in enumerate(parents):
        here = ".".join(parents[: i + 1])
        at = at.setdefault(part, {}) if isinstance(at, dict) else _item(at, part, path, ".".join(parents[:i]))
        if isinstance(at, str) and parents[:1] == ["models"]:  # a bare model name stands for {shape: name}
            raise InputError(f"--set {path}: {here} is the name '{at}'; set {here} itself")
    if isinstance(at, dict):
        at[last] = value
    elif isinstance(at, list):
        _item(at, last, path, ".".join(parents))
        at[int(last)] = value
    else:
        raise InputError(f"--set {path}: {'.'.join(parents)} is no mapping, it has no '{last}'")


def _item(at: object, part: str, path: str, where: str) -> Any:
    if not isinstance(at, list):
        raise InputError(f"--set {path}: {where} is no mapping, it has no '{part}'")
    if not part.isdigit() or len(part) > MOST_DIGITS or int(part) >= len(at):
        raise InputError(f"--set {path}: {where} has entries 0 to {len(at) - 1}, not '{part}'")
    return at[int(part)]
