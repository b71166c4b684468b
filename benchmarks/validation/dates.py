"""When a published row was measured: by its date, by the log that it is of, or by its system's release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.validation.names import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGS = {"yushengsu-thu/verl_training_log": "2025-04", "eric-haibin-lin/verl-data": "2025-03"}
"""Months of public collections of logs that carry no date: verl's port to ROCm, whose image held vLLM 0.6.3, and the
runs that verl's page of baselines lists."""

RELEASES: dict[str, tuple[tuple[str, str], ...]] = {
    r"verl": (
        *(("0.2", "2025-02"), ("0.3", "2025-04"), ("0.4", "2025-06"), ("0.5", "2025-08"), ("0.6", "2025-10")),
        *(("0.7", "2026-01"), ("0.8", "2026-04"), ("0.9", "2026-07")),
    ),
    r"nemo-?rl": (("0.3", "2025-08"), ("0.4", "2025-11"), ("0.5", "2026-01"), ("0.6", "2026-05"), ("0.7", "2026-07")),
}
"""Months of releases, by the files of verl on PyPI and by NeMo-RL's performance pages."""

UNDATED = {r"verl": "2025-09"}
"""Where a row of a system tells neither: between the times of its public runs, from early 2025 to now."""


def month_of(cells: Mapping[str, Any]) -> str:
    """Year and month of a row, ``2025-04``; empty where nothing tells it."""
    date = text_of(cells.get("measured_date"))[:7]
    if date:
        return date
    source, system = text_of(cells.get("source_ref")), text_of(cells.get("system")).lower()
    logged = next((month for log, month in LOGS.items() if log in source), "")
    return logged or next((month for name in RELEASES if (month := _by_release(name, system))), "")


def month_or_typical(cells: Mapping[str, Any]) -> str:
    """``month_of``, or the month that rows of the system without one are taken to be of."""
    system = text_of(cells.get("system")).lower()
    typical = next((month for name, month in UNDATED.items() if re.match(name, system)), "")
    return month_of(cells) or typical


def _by_release(name: str, system: str) -> str:
    found = re.match(rf"{name}\W+v?(\d+\.\d+)", system)
    if found is None:
        return ""
    given = _numbers(found[1])
    return ([month for release, month in RELEASES[name] if _numbers(release) <= given] or [""])[-1]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))
