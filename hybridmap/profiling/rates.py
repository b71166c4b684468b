"""Rates of a machine from rows of sizes: taken where the time of a size is bytes, not the fixed cost of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]

BOUND = 3.0
"""A size that takes so many times what the quickest takes spends two thirds of its time or more on its bytes."""


def bandwidth_bound(rows: Sequence[Row]) -> list[Row]:
    """Rows of one operation whose time is bound by bandwidth, largest first."""
    fixed_s = min((row["latency_s"] for row in rows), default=0.0)
    found = [row for row in rows if row["latency_s"] >= BOUND * fixed_s and row["num_bytes"] > _smallest(rows)]
    return sorted(found, key=lambda row: -row["num_bytes"])


def rate_of(rows: Sequence[Row]) -> float | None:
    """Bytes per second of the largest size that is bound by bandwidth; ``None`` where none is."""
    found = bandwidth_bound(rows)
    return found[0]["num_bytes"] / found[0]["latency_s"] if found else None


def memory_rate(memory: Sequence[Row]) -> float | None:
    """Of element-wise kernels of table ``memory_ops``."""
    return rate_of([row for row in memory if row["op"] == "element_wise"])


def host_rate(copies: Sequence[Row]) -> float | None:
    """Of copies from host memory of table ``copy``."""
    return rate_of([row for row in copies if row["kind"] == "host_to_device"])


def wire_rate(collectives: Sequence[Row]) -> float | None:
    """Of the link of one rank, from the all-gathers of the fastest group: each rank gets all but its own share."""
    found = []
    for gpus in {row["gpus"] for row in collectives}:
        rate = rate_of([row for row in collectives if row["gpus"] == gpus and row["kind"] == "all_gather"])
        if rate is not None:
            found.append(rate * (gpus - 1) / gpus)
    return max(found, default=None)


def _smallest(rows: Sequence[Row]) -> float:
    return min(float(row["num_bytes"]) for row in rows)
