"""How many rows of a report lie inside the intervals that ship, and how wide those are, by cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.validation.calibrate import residuals
from simulator.uncertainty import range_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("cluster", "rows", "inside", "high over low", "holds")


def inside_intervals(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Of each table, and by the cluster that gave the ranges: rows, share inside ``low`` to ``high``, mean width.

    The width is a factor; ``holds`` names the clusters of the rows.

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
    rows["of"] = [range_of(path).of or path for path in rows["cluster"]]
    for table, part in rows.groupby(rows["cluster"].str.split("/").str[0], sort=True):
        found.append(_line(f"all of {table}", part))
        found += [_line(str(name), own) for name, own in part.groupby("of", sort=True)]
    return found


def _line(cluster: str, rows: pd.DataFrame) -> dict[str, Any]:
    share, width = float(rows["inside"].mean()), float(np.exp(rows["width"].mean()))
    held = ", ".join(sorted(set(rows["cluster"]) - {cluster})) if not cluster.startswith("all of ") else ""
    return {"cluster": cluster, "rows": len(rows), "inside": share, "high over low": width, "holds": held}
