"""Reading a verl run: a launch script, a list of Hydra overrides, or a whole configuration; with verl 0.9.1's defaults.

Only what decides placement, layouts, batches and memory is looked at; of that, what stays unresolved is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.exports.launched import script_text
from hybridmap.exports.values import flat, value_of
from hybridmap.exports.verl.defaults import Same, default_of
from hybridmap.exports.verl.programs import MAIN, Program
from hybridmap.exports.verl.script import OVERRIDE, Launch, Override, advice_for, read_launch
from hybridmap.job.problems import described
from hybridmap.shell.values import has_gap
from profiles.errors import FileFormatError, InputError
from profiles.yaml_text import read_yaml_file
from simulator.plan.plan import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_POINTER = re.compile(r"\$\{(oc\.select:)?\s*([\w.]+)\s*(?:,\s*([^{}]*))?\}")


@dataclass(frozen=True)
class VerlConfig:
    """The settings that a run gives, by key.

    Parameters
    ----------
    source
        Its name, for messages.
    given
        Values by key; one that is not known is there as text.
    unresolved
        What is missing of values that are not known, by key.
    unread
        Files that the script reads and that were not found.
    notes
        What was read another way than it is written.
    program
        Which of verl's programs it starts.
    """

    source: str
    given: Mapping[str, Any]
    unresolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    program: Program = MAIN

    def get(self, key: str) -> Any:
        """The value of a key, given or by default; ``InputError`` for one that is given and not known."""
        return self._get(key, ())

    def _get(self, key: str, through: tuple[str, ...]) -> Any:
        if key in self.unresolved:
            raise self._unknown(key)
        if key not in self.given:
            default = default_of(key)
            return self._get(default.key, through) if isinstance(default, Same) else default
        value = self.given[key]
        if not isinstance(value, str) or "${" not in value:
            return value
        if key in through:
            raise InputError(f"{self.source}: {key}={value}: points to itself")
        return self._pointed(key, value, (*through, key))

    def _pointed(self, key: str, value: str, through: tuple[str, ...]) -> Any:
        """The value of another key, ``${key}`` or ``${oc.select:key,default}``."""
        found = _POINTER.fullmatch(value)
        if found is None:
            raise InputError(f"{self.source}: {key}={value}: this interpolation is not resolved here; write its value")
        name = key.rpartition(".")[0] + found[2] if found[2].startswith(".") else found[2]
        try:
            return self._get(name, through)
        except KeyError:
            if found[3] is None:
                raise InputError(f"{self.source}: {key}={value}: {name} is not read; write its value") from None
            return value_of(found[3])

    def _unknown(self, key: str) -> InputError:
        names = self.unresolved[key]
        files = f" (it also reads {', '.join(self.unread)}, which is not beside it)" if self.unread else ""
        return InputError(
            f"{self.source}: {key}={self.given[key]}: {', '.join(names)} is known only where the script runs{files}; "
            f"{advice_for(names)}"
        )

    def path(self, key: str) -> Any:
        """A model's path: what its folder is called must be known, where it lies need not be."""
        value = self.given.get(key)
        if not isinstance(value, str) or (key not in self.unresolved and "${" not in value):
            return self.get(key)
        return self.get(key) if has_gap(value.rstrip("/").rsplit("/", 1)[-1]) else value

    def whole(self, key: str, most: int = MOST) -> int:
        """A value that must be a whole number from 1 to ``most``."""
        value = self.get(key)
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(
                f"{self.source}: {key}: got {described(value)}, expected a whole number from 1 to {most:,}"
            )
        return value

    def whole_or(self, key: str, default: int) -> int:
        """As ``whole``; ``default`` where the value is null."""
        return default if self.get(key) is None else self.whole(key)

    def share(self, key: str) -> float:
        """A value that must lie between 0 and 1."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InputError(f"{self.source}: {key}: got {described(value)}, expected a share between 0 and 1")
        return float(value)

    def number(self, key: str, most: float = 1e3) -> float:
        """A value that must be a number from 0 to ``most``."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise InputError(f"{self.source}: {key}: got {described(value)}, expected a number from 0 to {most:g}")
        return float(value)

    def changed(self, values: Mapping[str, Any]) -> VerlConfig:
        """The same run with other values for some keys."""
        unresolved = {key: names for key, names in self.unresolved.items() if key not in values}
        return replace(self, given={**self.given, **values}, unresolved=unresolved)


def read_verl_config(path: Path, environment: Mapping[str, str] | None = None) -> VerlConfig:
    """Read a launch script, an ``overrides.yaml`` or a ``config.yaml`` of Hydra's output folder.

    ``environment``: variables that a script finds set; those of this process are not looked at.

    Raises
    ------
    InputError
        The file cannot be read, or does what is not understood here.
    FileFormatError
        It holds no override and no configuration of verl.
    """
    if path.suffix in (".yaml", ".yml"):
        content = read_yaml_file(path)
        launch = Launch(tuple(_listed(content))) if isinstance(content, list) else None
        config = _config(path, launch) if launch else VerlConfig(str(path), flat(content))
    else:
        config = _config(path, read_launch(script_text(path), path, environment or {}))
    if not any(key.startswith(("actor_rollout_ref.", "trainer.", "data.")) for key in config.given):
        raise FileFormatError(f"{path}: holds no key of verl, such as actor_rollout_ref.rollout.name=vllm")
    return config


def config_of_script(text: str, name: str, environment: Mapping[str, str]) -> VerlConfig:
    """As ``read_verl_config``, for the text of a script that is no file yet."""
    return _config(Path(name), read_launch(text, Path(name), environment))


def _config(path: Path, launch: Launch) -> VerlConfig:
    given: dict[str, Any] = {}
    unresolved: dict[str, tuple[str, ...]] = {}
    for override in launch.overrides:
        value = override.text if override.missing else value_of(override.text)
        inner = flat(value, f"{override.key}.") if isinstance(value, dict) else {override.key: value}
        for key, one in inner.items():
            unresolved.pop(key, None)
            given[key] = one
            if override.missing:
                unresolved[key] = override.missing
    return VerlConfig(str(path), given, unresolved, launch.unread, launch.notes, launch.program)


def _listed(content: list[Any]) -> Iterator[Override]:
    for word in content:
        found = OVERRIDE.match(word) if isinstance(word, str) else None
        if found:
            yield Override(found[2], "null" if found[1] == "~" else found[3])
