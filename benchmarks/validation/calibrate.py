"""Widths of intervals from errors of rows whose family no constant had seen, by what the row is, and their check.

A cluster is a path from the general to the special (``training/moe/blackwell``). Its width is the quantile of its rows'
errors; rows of its parent count a third, those of the grandparent a tenth, so that a cluster of three rows leans on its
neighbours and one of thirty stands by itself. Rows of one family count for few, since they are off alike (``alike``).
Where all of them together are too few for a quantile it is the largest error, and beyond it where few families were
asked (``BEYOND``). Devices without tables lean on each other alone, whatever was measured on them, and no other cluster
leans on them; a stage leans on whole iterations, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from benchmarks.validation.alike import counts
from benchmarks.validation.newer_releases import widened
from benchmarks.validation.report import is_rate, is_time
from profiles.atomic_write import write_atomically
from simulator.uncertainty import COVERAGE, DEVICE_FAMILIES, FILE, UNTABLED, device_family, load_calibration

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pandas as pd

    from profiles.records import Floats

WEIGHTS = (1.0, 0.35, 0.1, 0.03, 0.01)
"""What a row counts for a cluster that it lies in, and in whose parent, grandparent and so on it lies."""
BEYOND = {1: 6.314, 2: 2.322, 3: 1.667, 4: 1.4, 5: 1.253, 6: 1.158, 7: 1.091, 8: 1.04}
"""Multiple of the largest of so many families' errors below which a further one lies with probability ``COVERAGE``.

All from one normal distribution, of any width; of nine families the largest does for itself."""
FEW = 7
"""Rows of which one outside leaves more than 85 % inside; of fewer it does not, whatever the width."""
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

    The likes of a path are those of all other families of devices: a run on one that no row ran on leans on the same
    rows as one that had two. One without rows says how many it leans on.
    """
    rows = residuals(frame)
    found = {}
    for path in sorted(_paths(rows["cluster"].unique())):
        inside = rows[[_inside(path, own) for own in rows["cluster"]]]
        width = half_width(rows, path)
        if not np.isfinite(width):
            continue  # takes the range of its longest beginning
        counted = inside if len(inside) else rows[[_weight(path, own) > 0 for own in rows["cluster"]]]
        found[path] = {
            "low": round(float(np.exp(-width)), 4),
            "high": round(float(np.exp(width)), 4),
            "rows": len(counted),
            "families": int(counted["family"].nunique()),
        }
    return found


def _paths(clusters: Iterable[str]) -> set[str]:
    """The clusters, their beginnings, and of those that end in a family of devices the other families."""
    found = set()
    for own in clusters:
        parts = own.split("/")
        found |= {"/".join(parts[: n + 1]) for n in range(len(parts))}
        if parts[-1] in DEVICE_FAMILIES:
            found |= {"/".join([*parts[:-1], family]) for family in DEVICE_FAMILIES}
    return found


def coverage(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By cluster: share of rows inside the range that the rows of other families alone give, and its mean width.

    After them, for clusters of less than ``FEW`` rows, the longest beginning that has as many.
    """
    rows = residuals(frame)
    pairs = list(zip(rows["cluster"], rows["family"], strict=True))
    widths = {(path, family): half_width(rows[rows["family"] != family], path) for path, family in set(pairs)}
    rows = rows.assign(width=[widths[pair] for pair in pairs])
    own = sorted(rows["cluster"].unique())
    wider = sorted({_with_enough(path, rows) for path in own} - set(own))
    return [_covered(path, rows[[_inside(path, cluster) for cluster in rows["cluster"]]]) for path in (*own, *wider)]


def _with_enough(path: str, rows: pd.DataFrame) -> str:
    """The path, or its longest beginning with ``FEW`` rows in it; its table where none has."""
    while "/" in path and sum(_inside(path, own) for own in rows["cluster"]) < FEW:
        path = path.rpartition("/")[0]
    return path


def _covered(path: str, part: pd.DataFrame) -> dict[str, Any]:
    own = {"cluster": path, "rows": len(part), "families": int(part["family"].nunique())}
    factor = float(np.exp(2.0 * part["width"].mean()))
    inside = float((part["size"] <= part["width"]).mean())
    return {**own, "inside": inside, "high over low": factor, "bias": _bias(part)}


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


def _inside(path: str, own: str) -> bool:
    return own == path or own.startswith(f"{path}/")


def _weight(path: str, own: str) -> float:
    """What a row of cluster ``own`` counts for ``path``: the less, the further up the two paths part."""
    untabled = own.endswith(f"/{UNTABLED}")
    if untabled != path.endswith(f"/{UNTABLED}"):
        return 0.0  # parts without tables say nothing of those that have some, nor those of them
    parts = path.split("/")
    for up in range(len(parts)):
        if _inside("/".join(parts[: len(parts) - up]), own):
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
