"""What lies between calls, as facts of the trainer's file: from table ``dispatch``.

Seconds before a call are ``dispatch_s`` on one rank, more by ``dispatch_rank_s`` for each further rank of the host and
by ``dispatch_pool_rank_s`` beside that for each further rank of the pool that is called. ``dispatch_iteration_s``
comes once an iteration, with ``dispatch_iteration_s_per_sample``: prompts become rows, and what ran is read back.
Between calls batches move as they are: up to twice the samples of a profile take a tenth longer there, more do not,
and starts of one run differ by 6 %, so that is not priced (docs/log.md, 2026-11-27).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from profiles.tables.write import AROUND, BETWEEN, FAKE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]

MEANINGS = {
    "dispatch_s": "between two calls that follow one another, launcher ray",
    "dispatch_local_s": "the same, launcher local",
    "dispatch_iteration_s": "before the first call of an iteration and after its last, less one dispatch_s",
    "dispatch_local_iteration_s": "the same, launcher local",
    "dispatch_iteration_s_per_sample": "beside that for each sample, either launcher",
    "dispatch_rank_s": "what a further rank of the same host adds between two calls",
    "dispatch_pool_rank_s": "what it adds beside that where its own pool is called",
}


def dispatch_seconds(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """Seconds by constant, and how many batch sizes (by sample: launchers) each rests on; none without a row.

    Parameters
    ----------
    rows
        Of table ``dispatch``. Of ranks behind a controller those of a real engine hold, where there are any.
    """
    out = _of_samples([row for row in rows if row["part"] == AROUND])
    sample_s, _ = out.get("dispatch_iteration_s_per_sample", (0.0, 0))
    for launcher, suffix in (("ray", ""), ("local", "_local")):
        mine = _believed([row for row in rows if row["launcher"] == launcher])
        between, around = ([r for r in mine if r["part"] == part] for part in (BETWEEN, AROUND))
        alone = {part: _medians(_of(found, 1, 1)) for part, found in ((BETWEEN, between), (AROUND, around))}
        if not alone[BETWEEN]:
            continue
        out[f"dispatch{suffix}_s"] = _middle(alone[BETWEEN])
        more = [s - alone[BETWEEN][n] - n * sample_s for n, s in alone[AROUND].items() if n in alone[BETWEEN]]
        if more:
            out[f"dispatch{suffix}_iteration_s"] = max(float(np.median(more)), 0.0), len(more)
        if launcher == "ray":
            out |= _of_further_ranks(between, alone[BETWEEN])
    return out


def _of_samples(around: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """Slope over batch sizes of one rank, the median of those launchers and engines that have more than one size."""
    slopes = []
    for of in sorted({(row["launcher"], row["engine"]) for row in around}):
        alone = _medians(_of([row for row in around if (row["launcher"], row["engine"]) == of], 1, 1))
        if len(alone) > 1:
            slopes.append(float(np.polyfit(list(alone), list(alone.values()), 1)[0]))
    return {"dispatch_iteration_s_per_sample": (max(float(np.median(slopes)), 0.0), len(slopes))} if slopes else {}


def _believed(rows: Sequence[Row]) -> list[Row]:
    real = [row for row in rows if row["engine"] != FAKE]
    return list(real or rows)


def _of(rows: Sequence[Row], ranks: int, pools: int) -> list[Row]:
    return [row for row in rows if (row["ranks"], row["pools"]) == (ranks, pools)]


def _medians(rows: Sequence[Row]) -> dict[int, float]:
    """Seconds by batch size."""
    sizes = sorted({int(row["samples"]) for row in rows})
    return {n: float(np.median([row["latency_s"] for row in rows if row["samples"] == n])) for n in sizes}


def _middle(by_size: Mapping[int, float]) -> tuple[float, int]:
    return float(np.median(list(by_size.values()))), len(by_size)


def _of_further_ranks(between: Sequence[Row], alone: Mapping[int, float]) -> dict[str, tuple[float, int]]:
    """Slopes through the time of one rank: over ranks that each have a pool, and over ranks of one pool."""
    out: dict[str, tuple[float, int]] = {}
    further = [row for row in between if row["ranks"] > 1 and row["samples"] in alone]
    apart, together = ([r for r in further if (r["pools"] > 1) == own] for own in (True, False))
    slopes = [_slopes(rows, alone) for rows in (apart, together)]
    rank_s = max(float(np.median(slopes[0])), 0.0) if slopes[0] else 0.0
    if slopes[0]:
        out["dispatch_rank_s"] = rank_s, len(slopes[0])
    if slopes[1]:
        out["dispatch_pool_rank_s"] = max(float(np.median(slopes[1])) - rank_s, 0.0), len(slopes[1])
    return out


def _slopes(rows: Sequence[Row], alone: Mapping[int, float]) -> list[float]:
    out = []
    for samples in sorted({int(row["samples"]) for row in rows}):
        mine = [row for row in rows if row["samples"] == samples]
        further = [row["ranks"] - 1 for row in mine]
        added = [float(row["latency_s"]) - alone[samples] for row in mine]
        out.append(float(np.dot(further, added) / np.dot(further, further)))
    return out
