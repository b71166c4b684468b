"""The errors that the repository stands for, by family: ``committed.csv``, which ``make accuracy`` writes.

A gate in the tests predicts every published row and compares, by two rules: no family may become ``worse``, and no
prices may have ``moved``, for better or worse, without the table saying so. What is meant to change is written again
with the page, and then shows in the diff.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.validation.report import is_rate, is_time
from profiles.atomic_write import write_atomically

FILE = Path(__file__).parent / "committed.csv"
KEYS = ["table", "quantity", "family"]
ROW = ["table", "figure", "id", "system", "placement"]
MEAN_POINTS = 0.02
"""How much the mean absolute error of a family may grow."""
BIAS_POINTS = 0.03
"""How much its mean signed error may move away from zero."""
MOVED_POINTS = 0.0005
"""How much either may change at all. Constants that move a fifth change the mean of a family by half a point and more;
another machine changes the last digits of a float."""


def family_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each family's predictions: rows, mean absolute and mean signed error (``mean``, ``bias``).

    A system in a figure of the paper is a family there. A rate counts where its row has no time, which would say the
    same, and where a row has several rates the first of them.
    """
    kept = frame[frame["relative_error"].notna()]
    rate, row = kept["quantity"].map(is_rate).astype(bool), [kept[name] for name in ROW]
    timed = kept["quantity"].map(is_time).astype(bool).groupby(row).transform("any")
    first = rate.astype(int).groupby(row).cumsum() == 1
    kept = kept[~rate | (~timed & first)]
    paper = kept["figure"] + " " + kept["system"] + " " + kept["placement"]
    kept = kept.assign(family=kept["family"].mask(kept["table"] == "paper", paper.str.strip()))
    size = kept["relative_error"].abs().rename("size")
    groups = kept.assign(size=size).groupby(KEYS, sort=True)
    found = groups.agg(rows=("size", "size"), mean=("size", "mean"), bias=("relative_error", "mean"))
    return found.reset_index().round({"mean": 6, "bias": 6})


def worse(found: pd.DataFrame, committed: pd.DataFrame) -> list[str]:
    """A line for each committed family that is worse, has fewer rows or is gone; nothing where all is as good."""
    both = committed.merge(found, on=KEYS, how="left", suffixes=("", "_now"))
    lost = both["rows_now"].fillna(0) < both["rows"]
    mean = both["mean_now"] > both["mean"] + MEAN_POINTS
    bias = both["bias_now"].abs() > both["bias"].abs() + BIAS_POINTS
    return [_line(row) for row in both[lost | mean | bias].to_dict(orient="records")]


def moved(found: pd.DataFrame, committed: pd.DataFrame) -> list[str]:
    """A line for each family whose prices are not the committed ones, the one that moved most first."""
    both = committed.merge(found, on=KEYS, how="outer", suffixes=("", "_now"))
    both[["rows", "rows_now"]] = both[["rows", "rows_now"]].fillna(0)
    change = (both["bias_now"] - both["bias"]).abs().combine((both["mean_now"] - both["mean"]).abs(), max)
    change = change.mask(both["rows"] != both["rows_now"], float("inf"))
    kept = both.assign(change=change)[change > MOVED_POINTS].sort_values("change", ascending=False, kind="stable")
    return [_line(row) for row in kept.to_dict(orient="records")]


def _line(row: dict[str, object]) -> str:
    if row["rows_now"] != row["rows"]:
        now = 0 if pd.isna(row["rows_now"]) else row["rows_now"]
        return f"{row['table']} {row['quantity']}, {row['family']}: {row['rows']:.0f} rows, now {now:.0f}"
    now = f"{row['mean_now']:.2%} (bias {row['bias_now']:+.2%})"
    return f"{row['table']} {row['quantity']}, {row['family']}: {row['mean']:.2%} (bias {row['bias']:+.2%}), now {now}"


def write_committed(frame: pd.DataFrame, path: Path = FILE) -> None:
    """Write the errors of a whole report; the file is there complete or not at all."""
    write_atomically(path, family_errors(frame).to_csv(index=False))


if __name__ == "__main__":
    from benchmarks.validation.ablation import PUBLISHED, predicted

    write_committed(predicted(PUBLISHED))
