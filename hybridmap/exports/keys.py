"""Settings of another system by key, with the defaults that it has, and messages that name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridmap.job.problems import described
from hybridmap.shell.values import has_gap
from profiles.errors import InputError
from simulator.plan.plan import MOST

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Keys:
    """What a run says, and what its system takes where it says nothing.

    Parameters
    ----------
    source
        Its name, for messages.
    given, defaults
        Values by key.
    notes
        What was read another way than it is written.
    """

    source: str
    given: Mapping[str, Any]
    defaults: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        """The value of a key, given or by default; ``None`` where neither is.

        Raises ``InputError`` for one that is given and known only where the run starts.
        """
        value = self.given[key] if key in self.given else self.defaults.get(key)
        if isinstance(value, str) and has_gap(value):
            raise InputError(
                f"{self.source}: {key}={value} is known only where the script runs; give --env NAME=VALUE, or write it"
            )
        return value

    def path(self, key: str) -> str:
        """A model's path: what its folder is called must be known, where it lies need not be."""
        value = self.given.get(key)
        if isinstance(value, str) and not has_gap(value.rstrip("/").rsplit("/", 1)[-1]):
            return value
        return self.text(key)

    def whole(self, key: str, least: int = 1) -> int:
        """A value that must be a whole number."""
        value = self.get(key)
        if type(value) is not int or not least <= value <= MOST:
            raise InputError(f"{self.source}: {key}: got {described(value)}, expected a whole number from {least}")
        return value

    def number(self, key: str) -> float:
        """A value that must be a number that is not negative."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise InputError(f"{self.source}: {key}: got {described(value)}, expected a number")
        return float(value)

    def whole_or_none(self, key: str) -> int | None:
        """As ``whole``; ``None`` where there is no value."""
        return None if self.get(key) is None else self.whole(key)

    def text(self, key: str) -> str:
        """A value that must be a word."""
        value = self.get(key)
        if not isinstance(value, str) or not value:
            raise InputError(f"{self.source}: {key}: got {described(value)}, expected a name")
        return value

    def changed(self, values: Mapping[str, Any]) -> Keys:
        """The same run with other values for some keys."""
        return Keys(self.source, {**self.given, **values}, self.defaults, self.notes)
