"""Where two jobs differ, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybridmap.job.problems import described

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_DIFFERENCES = 12


def differences(left: Mapping[str, object], right: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """``(dotted key, value on the left, value on the right)`` of the first dozen differences."""
    found = list(_walk("", left, right))
    if len(found) > MOST_DIFFERENCES:
        found[MOST_DIFFERENCES:] = [("...", f"{len(found) - MOST_DIFFERENCES} more values", "others")]
    return found


def _walk(place: str, left: object, right: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in dict.fromkeys([*left, *right]):
            dotted = f"{place}.{key}" if place else str(key)
            if key not in left or key not in right:
                yield dotted, _shown(left, key), _shown(right, key)
            else:
                yield from _walk(dotted, left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from _walk(f"{place}[{i}]", a, b)
    elif left != right:
        yield place, described(left), described(right)


def _shown(section: Mapping[str, object], key: str) -> str:
    return described(section[key]) if key in section else "nothing"
