"""Collectives of small messages: what they take is how a host wakes its ranks, not their bytes.

On two cores of an idle virtual machine the same small collective takes 0.3 or 2 ms, for minutes, and which of the two
has nothing to do with its size. More bytes do not take less time, so the table has the times that do not fall with
bytes and lie nearest to the medians (isotonic regression of logarithms); the journal has each median.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import isotonic_regression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]

HOW = "latency_s: isotonic regression of the medians over bytes; the medians are in the journal"


def never_falling(rows: Sequence[Row]) -> list[Row]:
    """The rows of table ``collective`` in their order, with times that do not fall with bytes; failed ones as they are.

    Parameters
    ----------
    rows
        One of each key.
    """
    out = list(rows)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if not row.get("error"):
            groups.setdefault((row["dtype"], row["kind"], row["gpus"]), []).append(i)
    for mine in groups.values():
        ordered = sorted(mine, key=lambda i: rows[i]["num_bytes"])
        logs = np.log([float(rows[i]["latency_s"]) for i in ordered])
        for i, log_s, steady in zip(ordered, logs, isotonic_regression(logs).x, strict=True):
            if steady != log_s:
                out[i] = {**rows[i], "latency_s": float(np.exp(steady))}
    return out


def bound_by_latency(row: Row, rows: Sequence[Row], times: float) -> bool:
    """Whether a row of one operation takes less than ``times`` as long as the fastest of them."""
    return bool(row["latency_s"] < times * min(each["latency_s"] for each in rows))
