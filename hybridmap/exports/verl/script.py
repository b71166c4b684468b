"""The overrides of a verl launch script: the command that starts the trainer, as bash would expand it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridmap.exports.verl.programs import CONFIGS, MAIN, Program, program_of
from hybridmap.shell.script import read_script
from hybridmap.shell.values import has_gap
from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridmap.shell.script import Command, Script
    from hybridmap.shell.values import Missing, Text

OVERRIDE = re.compile(r"^(\+{0,2}|~)([A-Za-z_][\w.@/]*)=(.*)$", re.DOTALL)
_SECTIONS = ("actor_rollout_ref.", "trainer.", "data.", "algorithm.", "critic.", "reward.", "reward_model.")
_TORCH_NPU = re.compile(r"\s*import torch_npu\s*")


@dataclass(frozen=True)
class Override:
    """One override: its value as text, and the names of what of it is not known."""

    key: str
    text: str
    missing: Missing = ()


_OTHERS = "a run of another system is read with --from nemo-rl, openrlhf or slime"


@dataclass(frozen=True)
class Launch:
    """What a script starts the trainer with."""

    overrides: tuple[Override, ...]
    program: Program = MAIN
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def read_launch(text: str, path: Path, environment: Mapping[str, str]) -> Launch:
    """The one command of a script that starts verl.

    Raises
    ------
    FileFormatError
        It is no bash, or starts no verl.
    InputError
        It starts several, another program of verl's than its PPO trainer, or a configuration of the user's own.
    """
    script = read_script(text, str(path), environment, path.parent, _known_status)
    launches = [command for command in script.commands if any(_sets_verl(word.value) for word in command.words)]
    if not launches:
        started = [words[1] for command in script.commands if _starts_script(words := [w.value for w in command.words])]
        raise FileFormatError(
            f"{path}: starts nothing with a key of verl, such as actor_rollout_ref.rollout.name=vllm; "
            + (f"it starts {', '.join(started)}: import that script, or what is written to it" if started else _OTHERS)
        )
    ways = list({tuple(w.value for w in command.words): command for command in launches}.values())
    if len(ways) > 1:
        raise InputError(_several(path, ways))
    return _launch(path, ways[0], script)


def _starts_script(words: list[str]) -> bool:
    return len(words) > 1 and words[0] in ("bash", "sh") and words[1].endswith(".sh")


def _known_status(words: tuple[str, ...]) -> bool | None:
    """A script that probes for an Ascend NPU finds none: the GPUs that are planned for are NVIDIA's."""
    probes = len(words) == 3 and words[0].startswith("python") and words[1] == "-c"
    return False if probes and _TORCH_NPU.fullmatch(words[2]) else None


def _sets_verl(word: str) -> bool:
    found = OVERRIDE.match(word)
    return bool(found) and (found[2].startswith(_SECTIONS) or found[2] == "model_engine")  # type: ignore[index]


def _several(path: Path, ways: list[Command]) -> str:
    lines = ", ".join(str(command.line) for command in ways[:5])
    names = tuple(dict.fromkeys(name for command in ways for name in command.depends))
    which = f"which of them depends on {', '.join(names[:3])}: {advice_for(names)}" if names else "keep one of them"
    return f"{path}: {len(ways)} commands start verl (lines {lines}); one run is read at a time; {which}"


def advice_for(missing: Missing) -> str:
    """What to do about names that are not known."""
    variables = [name for name in missing if name.isidentifier()]
    if variables:
        return f"give {' '.join(f'--env {name}=VALUE' for name in variables[:3])}"
    return "write the value into the script"


def _launch(path: Path, command: Command, script: Script) -> Launch:
    words = command.words
    start, program, notes = _entry(path, words)
    overrides: list[Override] = [Override(key, text) for key, text in program.before.items()]
    rest = iter(words[start:])
    for word in rest:
        config = _config_name(word.value, rest)
        if config is not None:
            overrides += _of_config(path, config, program)
            continue
        found = OVERRIDE.match(word.value)
        if found and not has_gap(found[2]):
            removed = found[1] == "~"
            overrides.append(Override(found[2], "null" if removed else found[3], () if removed else word.missing))
        elif word.missing and not word.value.startswith("-"):
            notes.append(_other_words(path, word))
    overrides += [Override(key, text) for key, text in program.after.items()]
    return Launch(tuple(overrides), program, tuple(notes), script.unread)


def _entry(path: Path, words: tuple[Text, ...]) -> tuple[int, Program, list[str]]:
    """Where the trainer's own words begin, and which program it is."""
    for i, word in enumerate(words):
        if word.value == "-m" and i + 1 < len(words):
            return i + 2, *_known_entry(path, words[i + 1].value)
        if word.value.endswith(".py"):
            return i + 1, *_known_entry(path, word.value)
    return 0, MAIN, []


def _known_entry(path: Path, name: str) -> tuple[Program, list[str]]:
    program = program_of(str(path), name)
    return (MAIN, [f"{name} is read as if it were {MAIN.module}"]) if program is None else (program, [])


def _config_name(word: str, rest: object) -> str | None:
    if word in ("--config-name", "-cn"):
        return next(rest).value  # type: ignore[call-overload, no-any-return]
    return word.removeprefix("--config-name=") if word.startswith("--config-name=") else None


def _of_config(path: Path, name: str, program: Program) -> list[Override]:
    """What a configuration of verl's own sets against ``ppo_trainer``."""
    short = name.removesuffix(".yaml")
    if short not in CONFIGS:
        raise InputError(
            f"{path}: --config-name={name} is a configuration of your own, which is not read; give the config.yaml "
            "that Hydra wrote for a run (outputs/DATE/TIME/.hydra/config.yaml)"
        )
    engine, whose = CONFIGS[short]
    if whose not in (program, MAIN):
        raise InputError(f"{path}: --config-name={name} is of {whose.module}, and the script starts {program.module}")
    return [Override("model_engine", engine)] if engine != "dp" else []


def _other_words(path: Path, word: Text) -> str:
    """Words that the script takes from elsewhere whole: of nothing that is set, none; else nobody knows."""
    (name, *more) = word.missing
    if not more and word.value == f"${{{name}}}":
        return f"{name} is not set in the script and read as empty; --env {name}=WORDS fills it in"
    raise InputError(f"{path}: '{word.value}' depends on {', '.join(word.missing)}: {advice_for(word.missing)}")
