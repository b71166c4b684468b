"""Widths of intervals from errors of rows whose family no constant had seen, by what the row is, and their check.

A cluster is a path from the general to the special (``training/moe/blackwell``); one of few families has at least the
range of the smallest one around it that has enough (``clusters``). A width is the quantile of the rows' errors; rows of
the parent count a third, those of the grandparent a tenth: few rows lean on their neighbours, and thirty stand by
themselves. Rows of one family count for few, since they are off alike (``alike``).
Where all of them together are too few for a quantile it is the largest error, and beyond it where few families were
asked (``BEYOND``). Devices without tables lean on each other alone, whatever was measured on them, and no other cluster
leans on them; a stage leans on whole iterations, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from benchmarks.validation.alike import counts
from benchmarks.validation.clusters import cluster, holds, is_untabled, judged_by, members, paths_of
from benchmarks.validation.newer_releases import widened
from benchmarks.validation.report import is_rate
from profiles.atomic_write import write_atomically
from simulator.uncertainty import COVERAGE, FILE, load_calibration

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from profiles.records import Floats

WEIGHTS = (1.0, 0.35, 0.1, 0.03, 0.01)
"""What a row counts for a cluster that it lies in, and in whose parent, grandparent and so on it lies."""
BEYOND = {1: 6.314, 2: 2.322, 3: 1.667, 4: 1.4, 5: 1.253, 6: 1.158, 7: 1.091, 8: 1.04}
"""Multiple of the largest of so many families' errors below which a further one lies with probability ``COVERAGE``.

All from one normal distribution, of any width; of nine families the largest does for itself."""
LEAST = 0.05
"""Half-width below which no interval goes: repeats of one configuration spread by as much."""


def residuals(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with ``size`` = |ln(measured / predicted)| of left-out predictions, and their ``cluster``.

    Rows of complete or nearly complete configurations; one line a row and cluster, since a rate says nothing that the
    time beside it has not said.
    """
    given = frame if "left_out" in frame else frame.assign(left_out=frame["predicted"])
    good = given["level"].isin(["A", "B"]) | (given["table"] == "paper")
    kept = given[good & given["left_out"].notna() & (given["measured"] > 0) & (given["left_out"] > 0)]
    columns = ("table", "quantity", "model_kind", "schedule", "device", "system")
    paths = [cluster(*values) for values in kept[list(columns)].to_numpy()]
    families = [_family(*values) for values in kept[["table", "system", "id", "family"]].to_numpy()]
    kept = kept.assign(family=families, cluster=paths, size=np.abs(np.log(kept["measured"] / kept["left_out"])))
    return kept[kept["cluster"] != ""].drop_duplicates(["table", "figure", "id", "cluster"])


def _family(table: str, system: str, name: str, family: str) -> str:
    """The family of a row; in the paper's figures, on one device, it is a system's runs of one model."""
    return f"{system} {name.split(':')[1]}" if table == "paper" and ":" in name else family


def half_width(rows: pd.DataFrame, path: str) -> float:
    """Half-width in the logarithm that a new row of a cluster lies in with probability ``COVERAGE``."""
    by_cluster = {own: _weight(path, own) for own in rows["cluster"].unique()}
    weights = rows["cluster"].map(by_cluster).to_numpy(dtype=np.float64) * counts(rows)
    used = weights > 0
    if not used.any():
        return float("inf")
    sizes = rows["size"].to_numpy(dtype=np.float64)[used]
    found = _weighted_quantile(sizes, weights[used])
    if found is None:
        found = float(sizes.max()) * BEYOND.get(rows["family"][used].nunique(), 1.0)
    return max(found, LEAST)


def calibrated(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """``clusters`` of the calibration file: every path that some row lies in, every beginning of one, and its likes.

    The likes of a path are those of all other families of devices. ``of`` names the cluster that gave the range.
    """
    rows = residuals(frame)
    found = {}
    for path in sorted(paths_of(rows["cluster"].unique())):
        name = judged_by(rows, path)
        width = range_of_path(rows, path, name)
        if not np.isfinite(width):
            continue  # takes the range of its longest beginning
        counted = rows[members(rows, name)]
        found[path] = {
            "low": round(float(np.exp(-width)), 4),
            "high": round(float(np.exp(width)), 4),
            "rows": len(counted),
            "families": int(counted["family"].nunique()),
        } | ({} if name == path else {"of": name})
    return found


def range_of_path(rows: pd.DataFrame, path: str, name: str) -> float:
    """Half-width of a path that ``name`` judges: that of the wider cluster, and no less than what its few rows give."""
    return half_width(rows, path) if is_untabled(path) else max(half_width(rows, name), half_width(rows, path))


def coverage(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By cluster with enough families: share of rows inside the range that rows of other families alone give each.

    ``for`` names the clusters of fewer families that take their range from it.
    """
    rows = residuals(frame)
    pairs = list(zip(rows["cluster"], rows["family"], strict=True))
    own = {path: judged_by(rows, path) for path in rows["cluster"].unique()}
    widths = {
        (path, family): range_of_path(rows[rows["family"] != family], path, own[path]) for path, family in set(pairs)
    }
    rows = rows.assign(width=[widths[pair] for pair in pairs])
    return [
        _covered(name, rows[members(rows, name)], sorted(path for path in own if own[path] == name != path))
        for name in sorted(set(own.values()))
    ]


def _covered(name: str, part: pd.DataFrame, takers: list[str]) -> dict[str, Any]:
    line = {"cluster": name, "rows": len(part), "families": int(part["family"].nunique())}
    factor = float(np.exp(2.0 * part["width"].mean()))
    inside = float((part["size"] <= part["width"]).mean())
    return {**line, "inside": inside, "high over low": factor, "bias": _bias(part), "for": ", ".join(takers)}


def with_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """``low`` and ``high`` of every prediction, from the calibration that ships, as a plan has them.

    Wider where no table holds the kernels of a time, and for a release that came after all rows.
    """
    from simulator.uncertainty import interval

    columns = ("table", "quantity", "model_kind", "schedule", "device", "system")
    paths = [cluster(*values) for values in frame[list(columns)].fillna("").to_numpy()]
    nothing = (float("nan"), float("nan"))
    by_rule = frame["by_rule"].fillna(0.0) if "by_rule" in frame else [0.0] * len(frame)
    shares = [0.0 if path.startswith("memory") else float(share) for path, share in zip(paths, by_rule, strict=True)]
    found = [interval(*own) if own[0] else nothing for own in zip(paths, shares, strict=True)]
    families = frame["family"].fillna("") if "family" in frame else [""] * len(frame)
    found = [(widened(low, family), widened(high, family)) for (low, high), family in zip(found, families, strict=True)]
    bounds = np.asarray(found, dtype=np.float64).reshape(-1, 2)
    return frame.assign(low=frame["predicted"] * bounds[:, 0], high=frame["predicted"] * bounds[:, 1])


def write_calibration(frame: pd.DataFrame, path: Path = FILE) -> None:
    """Write ``clusters`` anew, keep the declared half-widths and the comments above them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith(("clusters:", "kinds:")))
    new = yaml.safe_dump({"clusters": calibrated(frame)}, sort_keys=True, default_flow_style=None, width=120)
    write_atomically(path, "\n".join([*lines[:end], new]))
    load_calibration.cache_clear()


def _bias(part: pd.DataFrame) -> float:
    """Mean of predicted over measured time - 1, by the left-out predictions."""
    sign = np.asarray([-1.0 if is_rate(q) else 1.0 for q in part["quantity"]])
    return float(np.expm1((sign * np.log(part["left_out"] / part["measured"])).mean()))


def _weight(path: str, own: str) -> float:
    """What a row of cluster ``own`` counts for ``path``: the less, the further up the two paths part."""
    untabled = is_untabled(own)
    if untabled != is_untabled(path):
        return 0.0  # parts without tables say nothing of those that have some, nor those of them
    parts = path.split("/")
    for up in range(len(parts)):
        if holds("/".join(parts[: len(parts) - up]), own):
            return WEIGHTS[min(up, len(WEIGHTS) - 1)]
    akin = untabled or (path.startswith("stage/") and own.startswith("rl/"))
    return WEIGHTS[-1] if akin else 0.0


def _weighted_quantile(sizes: Floats, weights: Floats) -> float | None:
    """Smallest size that ``COVERAGE`` of the weight does not exceed, a new row of weight 1 counted among them.

    ``None`` where the new row alone weighs more than what may lie outside: then no size is known to be enough.
    """
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / (weights.sum() + WEIGHTS[0])
    at = int(np.searchsorted(share, COVERAGE))
    return float(sizes[order][at]) if at < len(sizes) else None
