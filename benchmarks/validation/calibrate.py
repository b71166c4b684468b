"""Widths of intervals from errors of rows whose family no constant had seen, by what the row is, and their check.

A cluster is a path from the general to the special (``training/moe/blackwell``). Its width is the quantile of its rows'
errors; rows of its parent count a third, those of the grandparent a tenth, so that a cluster of three rows leans on its
neighbours and one of thirty stands by itself. Devices without tables count for their own clusters alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from benchmarks.validation.report import is_rate, is_time
from profiles.atomic_write import write_atomically
from simulator.uncertainty import COVERAGE, FILE, device_family, load_calibration

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from profiles.records import Floats

WEIGHTS = (1.0, 0.35, 0.1, 0.03, 0.01)
"""What a row counts for a cluster that it lies in, and in whose parent, grandparent and so on it lies."""
LEAST = 0.05
"""Half-width below which no interval goes: repeats of one configuration spread by as much."""
STAGES = ["gen", "logprob", "old_logprob", "ref_logprob", "critic", "train", "refit", "other"]


def cluster(table: str, quantity: str, model_kind: str, schedule: str, device: str, system: str = "") -> str:
    """The cluster of a published quantity; empty for one that is no time, rate or memory."""
    kind, part = model_kind or "dense", device_family(device)
    if quantity == "peak_mem_gib":
        return f"memory/{kind}"
    if not (is_time(quantity) or is_rate(quantity)):
        return ""
    if table == "paper":
        return f"paper/{quantity}/{system}"
    if table == "training":
        return f"training/{kind}/{part}"
    if table == "generation":
        return f"generation/{quantity}/{kind}/{part}"
    if quantity.removesuffix("_time_s") in STAGES:
        return f"stage/{quantity}/{kind}/{part}"
    return f"rl/{kind}/{'sync' if schedule in ('', 'sync') else 'overlapped'}/{part}"


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
    kept = kept.assign(cluster=paths, size=np.abs(np.log(kept["measured"] / kept["left_out"])))
    return kept[kept["cluster"] != ""].drop_duplicates(["table", "figure", "id", "cluster"])


def half_width(rows: pd.DataFrame, path: str) -> float:
    """Half-width in the logarithm that a new row of a cluster lies in with probability ``COVERAGE``."""
    weights = np.asarray([_weight(path, own) for own in rows["cluster"]])
    sizes = rows["size"].to_numpy(dtype=np.float64)
    used = weights > 0
    if not used.any():
        return float("inf")
    return max(_weighted_quantile(sizes[used], weights[used]), LEAST)


def calibrated(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """``clusters`` of the calibration file: every path that some row lies in, and every beginning of one."""
    rows = residuals(frame)
    paths = {"/".join(own.split("/")[: n + 1]) for own in rows["cluster"].unique() for n in range(own.count("/") + 1)}
    found = {}
    for path in sorted(paths):
        inside = rows[[_inside(path, own) for own in rows["cluster"]]]
        width = half_width(rows, path)
        found[path] = {
            "low": round(float(np.exp(-width)), 4),
            "high": round(float(np.exp(width)), 4),
            "rows": len(inside),
            "families": int(inside["family"].nunique()),
        }
    return found


def coverage(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By cluster: share of rows inside the range that the rows of other families alone give, and its mean width."""
    rows = residuals(frame)
    found = []
    for path, part in rows.groupby("cluster", sort=True):
        widths = [half_width(rows[rows["family"] != family], str(path)) for family in part["family"]]
        inside = part["size"].to_numpy() <= np.asarray(widths)
        own = {"cluster": path, "rows": len(part), "families": int(part["family"].nunique())}
        factor = float(np.exp(2.0 * np.mean(widths)))
        found.append({**own, "inside": float(inside.mean()), "high over low": factor, "bias": _bias(part)})
    return found


def with_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """``low`` and ``high`` of every prediction, from the calibration that ships."""
    from simulator.uncertainty import interval

    columns = ("table", "quantity", "model_kind", "schedule", "device", "system")
    paths = [cluster(*values) for values in frame[list(columns)].fillna("").to_numpy()]
    nothing = (float("nan"), float("nan"))
    bounds = np.asarray([interval(path) if path else nothing for path in paths], dtype=np.float64).reshape(-1, 2)
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


def _inside(path: str, own: str) -> bool:
    return own == path or own.startswith(f"{path}/")


def _weight(path: str, own: str) -> float:
    """What a row of cluster ``own`` counts for ``path``: the less, the further up the two paths part."""
    if own.endswith("/other") and not path.endswith("/other"):
        return 0.0  # parts without tables say nothing of those that have some
    parts = path.split("/")
    for up in range(len(parts)):
        if _inside("/".join(parts[: len(parts) - up]), own):
            return WEIGHTS[min(up, len(WEIGHTS) - 1)]
    return 0.0


def _weighted_quantile(sizes: Floats, weights: Floats) -> float:
    """Smallest size that ``COVERAGE`` of the weight does not exceed, a new row of weight 1 counted among them."""
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / (weights.sum() + WEIGHTS[0])
    at = int(np.searchsorted(share, COVERAGE))
    return float(sizes[order][min(at, len(sizes) - 1)])
