"""Releases of engines that nobody profiled: whose facts stand in, and which releases lie on either side."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = re.compile(r"(?P<engine>[a-z][a-z-]*)@(?P<version>\d+(\.\d+){1,3})")


def version_of(name: str) -> tuple[int, ...]:
    """Numbers of the release in ``engine@version``."""
    return tuple(int(part) for part in name.split("@")[1].split(".") if part.isdigit())


def stand_ins(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Profiled releases around one that is not, the nearest first.

    Parameters
    ----------
    name
        ``engine@version``.
    known
        Profiled names, of any engine.

    Returns
    -------
    tuple[str, ...]
        The release before and the one after; the last two, or the first two, where it lies beyond; fewer where the
        engine has fewer. Nothing for a name of another form or an engine of which no release is profiled. Of two as
        near the older one comes first.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return ()
    own = sorted((other for other in known if other.split("@")[0] == found["engine"]), key=version_of)
    asked = version_of(name)
    after = sum(version_of(other) <= asked for other in own)
    first = min(max(after - 1, 0), max(len(own) - 2, 0))
    return tuple(sorted(own[first : first + 2], key=lambda other: _distance(version_of(other), asked)))


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Between releases on a line on which a major one is a hundred minor ones away."""

    def place(version: tuple[int, ...]) -> float:
        major, minor, patch = (*version, 0, 0)[:3]
        return 100.0 * major + minor + patch / 100.0

    return abs(place(one) - place(other))
