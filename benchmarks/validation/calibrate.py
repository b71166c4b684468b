"""Read the widths of intervals off the errors of rows that nothing was fitted on, and check them on other sources."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.validation.report import is_rate, is_time
from profiles.atomic_write import write_atomically
from simulator.uncertainty import COVERAGE, FILE, load_calibration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The quantity that stands for a whole iteration or step, where a table has several that follow from one another.
_MAIN = {"rl": ("step_time_s",)}


def residuals(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with ``ratio`` = measured over predicted *time*, of everything predicted that nothing was fitted on.

    One line per published row: a throughput that follows from the step time beside it would count twice.
    """
    kept = frame[frame["relative_error"].notna() & ~frame["fit"] & (frame["predicted"] > 0)]
    kept = kept.loc[[_counts(t, q) for t, q in zip(kept["table"], kept["quantity"], strict=True)]]
    rate = pd.Series([is_rate(q) for q in kept["quantity"]], kept.index, dtype=bool)
    ratio = kept["measured"] / kept["predicted"]
    kept = kept.assign(ratio=ratio.where(~rate, 1.0 / ratio))
    row = pd.MultiIndex.from_frame(kept[["table", "figure", "id"]])
    timed = row.isin(row[~rate.to_numpy()])
    first_rate = rate & ~timed & ~row.duplicated()
    return kept.loc[~rate | first_rate]


def spread_of(ratios: Sequence[float]) -> tuple[float, float]:
    """Smallest range, cut evenly at both ends, that a new row falls into with probability ``COVERAGE``.

    The ranks are those of split conformal prediction, so the statement needs no shape of the distribution; with too
    few rows for it the range is from the smallest to the largest.
    """
    ordered, count = np.sort(np.asarray(ratios, dtype=np.float64)), len(ratios)
    cut = max(math.floor((count + 1) * (1.0 - COVERAGE) / 2.0 + 1e-9), 1)
    return float(ordered[cut - 1]), float(ordered[count - cut])


def calibrated(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """``kinds`` of the calibration file."""
    found = {}
    for (table,), part in residuals(frame).groupby(["table"], sort=True):
        low, high = spread_of(part["ratio"].tolist())
        found[str(table)] = {
            "low": round(low, 4),
            "high": round(high, 4),
            "rows": len(part),
            "systems": int(part["system"].nunique()),
        }
    return found


def coverage(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By table: share of rows inside the range, and inside the range that the other systems' rows alone give."""
    found = []
    for (table,), part in residuals(frame).groupby(["table"], sort=True):
        low, high = spread_of(part["ratio"].tolist())
        inside = part["ratio"].between(low, high).mean()
        found.append(
            {
                "table": table,
                "rows": len(part),
                "systems": int(part["system"].nunique()),
                "low": low,
                "high": high,
                "covered": float(inside),
                "covered, source left out": _left_out(part),
            }
        )
    return found


def write_calibration(frame: pd.DataFrame, path: Path = FILE) -> None:
    """Write ``kinds`` anew, keep the declared half-widths and the comments above them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("kinds:"))
    new = yaml.safe_dump({"kinds": calibrated(frame)}, sort_keys=True, default_flow_style=None)
    write_atomically(path, "\n".join([*lines[:end], new]))
    load_calibration.cache_clear()


def _left_out(part: pd.DataFrame) -> float | None:
    """Share of rows inside the range that the rows of all other systems give; ``None`` with one system only."""
    if part["system"].nunique() < 2:
        return None
    inside = 0
    for system in part["system"].unique():
        own = part["system"] == system
        low, high = spread_of(part.loc[~own, "ratio"].tolist())
        inside += int(part.loc[own, "ratio"].between(low, high).sum())
    return inside / len(part)


def _counts(table: str, quantity: str) -> bool:
    return quantity in _MAIN[table] if table in _MAIN else is_time(quantity) or is_rate(quantity)
