"""Whose table a file is, by its name, and which release of an engine is nearest to another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.lookup.table import TableCard

_FRAMEWORKS = {"trtllm": "tensorrt-llm"}
"""Engines whose name in the source of the tables is not ours."""


def operator_of(name: str) -> str:
    """The operator that a table holds: ``gemm`` of ``gemm.sglang@0.5.14``.

    Parameters
    ----------
    name
        Of a table.

    Returns
    -------
    str
        Name of the common table of the operator.
    """
    return name.split(".", 1)[0]


def engine_of(name: str, card: TableCard) -> tuple[str, str]:
    """Engine and release that a table was measured on.

    Parameters
    ----------
    name, card
        Of the table; its sidecar, which says it for a common table.

    Returns
    -------
    tuple[str, str]
        Family and release; empty texts where nobody says so.
    """
    if "@" in name:
        family, release = name.split(".", 1)[1].split("@", 1)
        return family, release
    if not card.sources:
        return "", ""
    family, release = card.sources[0]
    return _FRAMEWORKS.get(family, family), release


def ordered(operator: str, cards: Mapping[str, TableCard], family: str, release: str) -> list[str]:
    """Tables of an operator that an engine measured, nearest release first; of two as near, the newer one.

    Of routed experts the newest comes first: the older tables were made before their kernels had configurations for
    many shapes (vLLM 0.19's four-bit experts take 2.4 times as long as 0.24's and as SGLang's).

    Parameters
    ----------
    operator, cards
        Name of the common table, and every sidecar of the folder.
    family, release
        Of the engine.

    Returns
    -------
    list[str]
        Names of tables.
    """
    own = {n: engine_of(n, card) for n, card in cards.items() if operator_of(n) == operator}
    found = [(name, version) for name, (whose, version) in own.items() if whose == family]
    if operator == "moe":
        return [name for name, version in sorted(found, key=lambda nv: (_number(nv[1]), _parts(nv[1])), reverse=True)]
    asked = _number(release)
    return [
        name
        for name, version in sorted(
            found, key=lambda nv: (abs(_number(nv[1]) - asked), [-part for part in _parts(nv[1])])
        )
    ]


def _number(release: str) -> float:
    """Releases on a line; a candidate stands with its release, and a major release is a hundred minor ones apart."""
    major, minor, patch = (*_parts(release)[:3], 0, 0, 0)[:3]
    return 100.0 * major + minor + patch / 100.0


def _parts(release: str) -> list[int]:
    """Every number of a release: of candidates of one release the newer one has the larger last number."""
    return [int(part) for part in re.findall(r"\d+", release)]
