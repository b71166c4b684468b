"""Changes written into a run's own file: overrides behind its command, or values in its configuration."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from hybridmap.exports.values import override_text
from hybridmap.shell.script import read_script
from profiles.errors import InputError
from profiles.yaml_text import parse_yaml, yaml_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridmap.exports.reader import Change

MARKS = {
    "verl": ("verl", "main_ppo", "main_dapo", "actor_rollout_ref."),
    "nemo-rl": ("run_grpo",),
    "openrlhf": ("openrlhf.cli.train_ppo_ray",),
    "slime": ("train.py", "train_async.py"),
}
"""What tells the command of each system from others of a script."""


def changed_text(
    path: Path, text: str, system: str, changes: tuple[Change, ...], environment: Mapping[str, str]
) -> str:
    """The text of a run's file with keys changed.

    Raises ``InputError`` where a change cannot be written there: in a command that the script builds from text, or a
    flag that only its absence turns off.
    """
    if path.suffix in (".yaml", ".yml"):
        return _changed_yaml(path, text, changes)
    gone = [key for key, _, new in changes if system in ("openrlhf", "slime") and (new is None or new is False)]
    for key in gone:
        text = _without_flag(path, text, key)
    end = _end_of_command(path, text, system, environment)
    words = [word for change in changes if change[0] not in gone for word in _words(system, change)]
    added = "".join(f" \\\n    {word}" for word in words)
    raw = text.encode("utf-8")
    return (raw[:end] + added.encode("utf-8") + raw[end:]).decode("utf-8")


def _end_of_command(path: Path, text: str, system: str, environment: Mapping[str, str]) -> int:
    """Where in a script its launch ends: behind the last of its words, or before a last ``"$@"``."""
    script = read_script(text, str(path), environment, path.parent)
    found = [
        command
        for command in script.commands
        if any(mark in word.value for word in command.words for mark in MARKS[system])
    ]
    ends = {command.end for command in found}
    if len(ends) != 1 or None in ends:
        raise InputError(
            f"{path}: its command is put together from text, so nothing can be added to it; change the keys by hand"
        )
    (end,) = ends
    assert end is not None
    return end


def _without_flag(path: Path, text: str, key: str) -> str:
    """The text without a flag that only its absence turns off; it must stand there once, and without a value."""
    flag = re.compile(rf"--{re.escape(key)}(?=[\s)\\]|$)[ \t]*(?=$|--|[)\\\n])", re.MULTILINE)
    if len(flag.findall(text)) != 1:
        raise InputError(f"{path}: only leaving --{key} out turns it off; delete it by hand")
    return flag.sub("", text)


def _words(system: str, change: Change) -> list[str]:
    key, _, new = change
    if system in ("openrlhf", "slime"):
        values = [] if new is True else new if isinstance(new, list) else [new]
        return [" ".join([f"--{key}", *(shlex.quote(str(value)) for value in values)])]
    mark = "++" if key.startswith("+") or system == "nemo-rl" else ""
    return [shlex.quote(f"{mark}{key.lstrip('+')}={override_text(new)}")]


def _changed_yaml(path: Path, text: str, changes: tuple[Change, ...]) -> str:
    content = parse_yaml(text, str(path))
    if isinstance(content, list):  # Hydra's overrides.yaml
        added = [f"- {key}={override_text(new)}\n" for key, _, new in changes]
        return "".join([text.rstrip("\n"), "\n", *added])
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no settings")
    for key, _, new in changes:
        _put(content, key.lstrip("+").split("."), new)
    return yaml_of(content)


def _put(content: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(content.get(part), dict):
            content[part] = {}
        content = content[part]
    content[path[-1]] = value
