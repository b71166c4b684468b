"""CPU time of one published row of generation, priced request by request, in milliseconds.

python -m benchmarks.serving_speed [ID ...]

Each row is priced several times, in passes over all of them, and the fastest counts: the first reads tables, and a core
that is shared with other work takes up to twice as long for seconds on end. What is checked once a table (duplicates,
contradictions) is not of a row.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.validation.ablation import PUBLISHED
from benchmarks.validation.generation import predict_row, rows_of
from benchmarks.validation.guard import guarded
from benchmarks.validation.tables import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TARGET_MS = 50.0
SLOWEST = 12
PASSES = 3
TIMES = 2


def milliseconds(cells: Mapping[str, Any]) -> float:
    """CPU time of a row; the second time its tables have been read."""
    times = []
    for _ in range(TIMES):
        began = time.process_time()
        guarded(rows_of(cells), lambda: predict_row(cells, rows_of(cells)))
        times.append(time.process_time() - began)
    return 1e3 * min(times)


def main(wanted: list[str]) -> None:
    """Print the median, the 95 % quantile and the slowest rows."""
    table = read_tables("generation", [PUBLISHED / "generation.csv"])
    table = table[table["id"].isin(wanted)] if wanted else table
    records = [{str(column): cell for column, cell in record.items()} for record in table.to_dict(orient="records")]
    passes = [[milliseconds(cells) for cells in records] for _ in range(PASSES)]
    took = dict(zip((str(cells["id"]) for cells in records), np.min(passes, axis=0).tolist(), strict=True))
    times = np.asarray([*took.values()])
    most, above = np.quantile(times, 0.95), np.sum(times > TARGET_MS)
    print(f"{len(times)} rows: median {np.median(times):.1f} ms, 95 % below {most:.1f}, {above} above {TARGET_MS:.0f}")
    for row_id in sorted(took, key=took.__getitem__, reverse=True)[:SLOWEST]:
        print(f"{took[row_id]:8.1f} ms  {row_id}")


if __name__ == "__main__":
    main(sys.argv[1:])
