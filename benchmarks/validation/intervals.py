"""How many rows of a report lie inside the intervals that ship, and how wide those are, by cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.validation.calibrate import residuals

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("cluster", "rows", "inside", "high over low")


def inside_intervals(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By cluster, and of each table as a whole: rows, share inside ``low`` to ``high``, mean width as a factor.

    Parameters
    ----------
    frame
        A report with intervals (``calibrate.with_intervals``). Rows of complete or nearly complete configurations
        count, each once in a cluster.
    """
    rows = residuals(frame)
    rows = rows[rows["low"].notna() & rows["high"].notna()]
    if rows.empty:
        return []
    inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
    rows = rows.assign(inside=inside, width=np.log(rows["high"] / rows["low"]))
    found = []
    for table, part in rows.groupby(rows["cluster"].str.split("/").str[0], sort=True):
        found.append(_line(str(table), part))
        found += [_line(str(path), own) for path, own in part.groupby("cluster", sort=True)]
    return found


def _line(cluster: str, rows: pd.DataFrame) -> dict[str, Any]:
    share, width = float(rows["inside"].mean()), float(np.exp(rows["width"].mean()))
    return {"cluster": cluster, "rows": len(rows), "inside": share, "high over low": width}
