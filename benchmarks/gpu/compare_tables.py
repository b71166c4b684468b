"""Our rows of a device beside the catalogue's: each row that we measured, priced by the imported tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from profiles.errors import NoBasisError
from profiles.store import device_names, load_device

if TYPE_CHECKING:
    from pathlib import Path

    from profiles.device import DeviceProfile

COMPARED = ("gemm", "attention_prefill", "attention_decode", "copy")


def card_named(device_string: str) -> str | None:
    """The catalogue's name of a device, by what its driver calls it."""
    return next((known for known in device_names() if load_device(known).spec.device_string == device_string), None)


def compare_with_catalogue(profile: Path, device_string: str) -> dict[str, Any]:
    """Ratio of our time to the catalogue's by table (median, 10th and 90th percentile) and the rows furthest apart.

    Empty where the catalogue has no such device. Rows that it can only extrapolate are left out.
    """
    known = card_named(device_string)
    if known is None:
        return {}
    import pyarrow.parquet as pq

    theirs, found = load_device(known), {}
    for table in COMPARED:
        path = profile / f"{table}.parquet"
        if not path.is_file():
            continue
        rows = [row for row in pq.read_table(path).to_pylist() if not row["error"]]
        found[table] = _compared(table, rows, theirs)
    return {"device": known, "tables": found}


def _compared(table: str, rows: list[dict[str, Any]], theirs: DeviceProfile) -> dict[str, Any]:
    ratios = []
    for row in rows:
        try:
            priced = _price(table, row, theirs)
        except NoBasisError:
            continue
        if priced is not None:
            ratios.append((row["latency_s"] / priced, row))
    if not ratios:
        return {"rows": 0}
    values = np.asarray([ratio for ratio, _ in ratios])
    far = sorted(ratios, key=lambda x: -abs(np.log(x[0])))[:10]
    keys = [k for k in rows[0] if k not in ("low_s", "high_s", "repeats", "outliers", "error")]
    return {
        "rows": len(ratios),
        "median_ratio": float(np.median(values)),
        "p10": float(np.quantile(values, 0.1)),
        "p90": float(np.quantile(values, 0.9)),
        "furthest": [{"ratio": float(ratio), **{k: row[k] for k in keys}} for ratio, row in far],
    }


def _price(table: str, row: dict[str, Any], theirs: DeviceProfile) -> float | None:
    """The catalogue's time of a row, where it rests on measurements."""
    if table == "gemm":
        priced = theirs.gemm(row["m"], row["n"], row["k"], row["dtype"])
    elif table == "copy":
        if row["kind"] != "host_to_device":
            return None
        return float(theirs.host_copy(row["num_bytes"]).s)
    elif table == "attention_prefill":
        priced = theirs.attention_prefill(row["batch"], row["seq"], row["heads"], row["kv_heads"], row["head_dim"])
    else:
        priced = theirs.attention_decode(
            row["batch"], row["context"], row["heads"], row["kv_heads"], row["head_dim"], row["kv_dtype"]
        )
    return float(priced.s) if int(priced.weakest) <= 2 else None
