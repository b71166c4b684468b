"""Runs of other systems as they are read, written again and changed: one reader for each system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hybridmap.exports.imported import import_setup, setup_as_read
from hybridmap.exports.keys import Keys
from hybridmap.exports.nemo_rl.export import nemo_rl_settings
from hybridmap.exports.nemo_rl.import_run import setup_of as setup_of_nemo_rl
from hybridmap.exports.nemo_rl.read import read_nemo_rl
from hybridmap.exports.openrlhf.import_run import read_openrlhf
from hybridmap.exports.openrlhf.import_run import setup_of as setup_of_openrlhf
from hybridmap.exports.openrlhf.settings import openrlhf_settings
from hybridmap.exports.slime.import_run import read_slime
from hybridmap.exports.slime.import_run import setup_of as setup_of_slime
from hybridmap.exports.slime.settings import slime_settings
from hybridmap.exports.verl.advice import changes_of_verl
from hybridmap.exports.verl.import_run import as_read, import_verl
from hybridmap.exports.verl.read import VerlConfig, read_verl_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hybridmap.exports.export import Settings, Source
    from hybridmap.exports.imported import Given, Imported, Setup

Change = tuple[str, Any, Any]
"""A key, its value as it is, its value as it should be; ``None`` where it goes."""
Config = TypeVar("Config", VerlConfig, Keys)


class Reader(ABC, Generic[Config]):
    """How the runs of one system are read."""

    @abstractmethod
    def read(self, path: Path, environment: Mapping[str, str]) -> Config:
        """The settings of a run; errors name what is not understood."""

    @abstractmethod
    def imported(self, config: Config, given: Given) -> Imported:
        """The job and the plan that they mean."""

    @abstractmethod
    def as_read(self, config: Config, source: Source) -> Source:
        """The run whose job is known."""

    @abstractmethod
    def target(self, imported: Imported) -> str:
        """The target that plans as such a run can be."""

    @abstractmethod
    def changes(self, imported: Imported, config: Config, ours: Source) -> tuple[Change, ...]:
        """Every key in which a run and a plan differ."""

    def changed(self, config: Config, changes: tuple[Change, ...]) -> Config:
        """The same run with keys changed."""
        return config.changed({key.lstrip("+"): new for key, _, new in changes})


class _Verl(Reader[VerlConfig]):
    def read(self, path: Path, environment: Mapping[str, str]) -> VerlConfig:
        return read_verl_config(path, environment)

    def imported(self, config: VerlConfig, given: Given) -> Imported:
        return import_verl(config, given)

    def as_read(self, config: VerlConfig, source: Source) -> Source:
        return as_read(config, source)

    def target(self, imported: Imported) -> str:
        return "verl/fsdp" if str(imported.job.engines.training).startswith("fsdp") else "verl/megatron"

    def changes(self, imported: Imported, config: VerlConfig, ours: Source) -> tuple[Change, ...]:
        return changes_of_verl(imported, config, ours)


class _OfKeys(Reader[Keys]):
    def __init__(
        self,
        read: Callable[[Path, Mapping[str, str]], Keys],
        setup_of: Callable[[Keys], Setup],
        settings: Callable[[Source], Settings],
        target: Callable[[Imported], str],
    ) -> None:
        self._read, self._setup_of, self._settings, self._target = read, setup_of, settings, target

    def read(self, path: Path, environment: Mapping[str, str]) -> Keys:
        return self._read(path, environment)

    def imported(self, config: Keys, given: Given) -> Imported:
        return import_setup(self._setup_of(config), given)

    def as_read(self, config: Keys, source: Source) -> Source:
        return setup_as_read(self._setup_of(config), source)

    def target(self, imported: Imported) -> str:
        return self._target(imported)

    def changes(self, imported: Imported, config: Keys, ours: Source) -> tuple[Change, ...]:
        theirs, present = self._settings(ours).values, self._settings(imported.source).values
        found = [
            (key, config.get(key), new)
            for key, new in theirs.items()
            if present.get(key) != new and config.get(key) != new
        ]
        gone = [key for key in present if key not in theirs and key in config.given]
        return (*found, *((key, config.get(key), None) for key in gone))


def _nemo_rl_target(imported: Imported) -> str:
    return "nemo-rl/dtensor" if str(imported.job.engines.training).startswith("fsdp") else "nemo-rl/megatron"


READERS: dict[str, Reader[Any]] = {
    "verl": _Verl(),
    "nemo-rl": _OfKeys(read_nemo_rl, setup_of_nemo_rl, nemo_rl_settings, _nemo_rl_target),
    "openrlhf": _OfKeys(read_openrlhf, setup_of_openrlhf, openrlhf_settings, lambda _: "openrlhf"),
    "slime": _OfKeys(read_slime, setup_of_slime, slime_settings, lambda _: "slime"),
}
"""How runs of each system are read."""
