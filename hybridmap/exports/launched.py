"""The one command of a launch script that starts a system's trainer, as bash would expand it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.shell.script import read_script
from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hybridmap.shell.values import Text

MOST_BYTES = 1 << 20


def script_text(path: Path) -> str:
    """A script's text; ``InputError`` for one that cannot be read or is larger than any launch script."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)  # a device has no end
        if len(raw) > MOST_BYTES:
            raise FileFormatError(f"{path}: larger than 1 MiB, which no launch script is")
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def launched(
    path: Path, environment: Mapping[str, str], is_trainer: Callable[[str], bool], name: str, text: str | None = None
) -> tuple[Text, ...]:
    """The words behind the trainer's own name.

    Parameters
    ----------
    path, text
        The script, and its text where it is no file yet.
    environment
        Variables that it finds set.
    is_trainer
        Whether a word names the trainer.
    name
        What the trainer is called, for messages.

    Raises
    ------
    FileFormatError
        It is no bash, or starts no such trainer.
    InputError
        It starts several.
    """
    script = read_script(text if text is not None else script_text(path), str(path), environment, path.parent)
    found = {
        tuple(word.value for word in command.words): command
        for command in script.commands
        if any(is_trainer(word.value) for word in command.words)
    }
    if not found:
        raise FileFormatError(f"{path}: starts no {name}")
    if len(found) > 1:
        lines = ", ".join(str(command.line) for command in found.values())
        raise InputError(f"{path}: {len(found)} commands start {name} (lines {lines}); one run is read at a time")
    (command,) = found.values()
    at = next(i for i, word in enumerate(command.words) if is_trainer(word.value))
    return command.words[at + 1 :]


def flags_of(words: tuple[Text, ...]) -> dict[str, list[str]]:
    """Words as flags with their values; what is known only where the script runs shows as ``${NAME}``."""
    out: dict[str, list[str]] = {}
    last = ""
    for word in words:
        name = word.value
        if name.startswith("--") and not word.missing:
            last, sign, value = name.removeprefix("--").partition("=")
            out[last] = [value] if sign else []
        elif last:
            out[last].append(name)
    return out
