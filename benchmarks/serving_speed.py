"""CPU time of one published row of generation, priced request by request, in milliseconds.

python -m benchmarks.serving_speed

Each row is priced twice and the second time counts: the first reads tables. An idle machine is needed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.validation.ablation import PUBLISHED
from benchmarks.validation.generation import predict
from benchmarks.validation.tables import read_tables

if TYPE_CHECKING:
    import pandas as pd

SLOWEST = 12


def milliseconds(row: pd.DataFrame) -> float:
    """CPU time of a row whose tables have been read."""
    predict(row)
    began = time.process_time()
    predict(row)
    return (time.process_time() - began) * 1e3


def main() -> None:
    """Print the median, the 95 % quantile and the slowest rows."""
    table = read_tables("generation", [PUBLISHED / "generation.csv"])
    took: dict[Any, float] = {table["id"].iloc[i]: milliseconds(table.iloc[[i]]) for i in range(len(table))}
    times = np.asarray([*took.values()])
    most, above = np.quantile(times, 0.95), np.mean(times > 50.0)
    print(f"{len(times)} rows: median {np.median(times):.1f} ms, 95 % below {most:.1f}, {above:.1%} above 50")
    for row_id in sorted(took, key=took.__getitem__, reverse=True)[:SLOWEST]:
        print(f"{took[row_id]:8.1f} ms  {row_id}")


if __name__ == "__main__":
    main()
