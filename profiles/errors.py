"""The one error tree of hybridmap.

    HybridmapError                 anything we raise on purpose
    ├── InputError                 the input cannot work as given; the command line exits 2
    │   ├── UnknownNameError       a model, device, engine or key that does not exist (lists near matches)
    │   ├── FileFormatError        a file that is truncated, of another kind, or of another schema version
    │   ├── InfeasibleError        no plan fits; says which role, what it needs, what there is
    │   └── NotYetError            a reserved feature that this version does not carry
    └── NoBasisError               no measurement and no stated rule gives this number

An expected outcome (``InputError``) reads as one message without a traceback. ``NoBasisError`` may be
skipped for one candidate of a search; if every candidate raises it, the search raises it too.
Everything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HybridmapError(Exception):
    """Base of every error that hybridmap raises on purpose."""

    exit_status = 2
    """What the command line ends with."""


class InputError(HybridmapError, ValueError):
    """The input cannot work as given. The message says what was asked, the limit and the next step."""


MOST_LISTED = 30
"""Names that an error lists."""


class UnknownNameError(InputError):
    """A name that is not in a catalogue.

    Parameters
    ----------
    kind
        What was looked up, in the singular: ``model``, ``device``, ``key``.
    name
        The name that was asked for.
    known
        Every valid name; the nearest ones are suggested.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = _near(name.lower(), self.known)
        suggestion = f"did you mean {' or '.join(near)}?" if near else self._known_text()
        super().__init__(f"unknown {kind} '{name}'; {suggestion}{' ' + hint if hint else ''}")

    def _known_text(self) -> str:
        """All names; of a long catalogue how many, since what to do about it would stand behind a screen of them."""
        if len(self.known) <= MOST_LISTED:
            return f"known: {', '.join(self.known)}"
        return f"none of the {len(self.known)} known ones is like it"


def _near(name: str, known: list[str]) -> list[str]:
    """Up to three names: those that hold all of ``name`` (``h100`` is no misspelt ``h200``), else similar ones."""
    holding = [k for k in known if len(name) >= 3 and name in k.lower()]
    holding.sort(key=lambda k: not k.lower().startswith(name))
    return holding[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)


class FileFormatError(InputError):
    """A file that cannot be read as what it should be; names the file and the place."""


class InfeasibleError(InputError):
    """No plan fits. Carries the numbers so that a caller can act on them."""

    def __init__(self, message: str, *, fewest_gpus: int | None = None) -> None:
        self.fewest_gpus = fewest_gpus
        super().__init__(message)


class NotYetError(InputError):
    """A reserved key or feature that this version does not carry yet."""


class NoBasisError(HybridmapError):
    """No measurement and no stated rule gives this number; says which measurement is missing."""
