"""From rows to numbers: the table of all rows, and mean, median, worst and bias of the errors by every grouping."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.validation.guard import INTERNAL
from benchmarks.validation.rows import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.validation.rows import Row

GROUPS = ("figure", "system", "level", "device", "model_kind", "placement", "schedule", "fit")
"""Besides table and quantity, which stand in every group: an error of a time and one of a memory do not mix."""

REPEATS = "gate: repeats "
"""What the reason of a row starts with that repeats another (``gate.duplicates``)."""

STATISTICS = ("rows", "predicted", "mean", "median", "worst", "bias")


def frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table with exactly ``rows.COLUMNS``.

    ``relative_error`` is predicted / measured - 1; empty without a prediction or where nothing was measured.
    """
    records = [{**row.__dict__, "relative_error": _relative_error(row)} for row in rows]
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    numbers = ["measured", "predicted", "low", "high", "relative_error", "naive"]
    return frame.assign(**{name: frame[name].astype(float) for name in numbers}, fit=frame["fit"].astype(bool))


def statistics(frame: pd.DataFrame) -> dict[str, float | int | None]:
    """Counts, and of the relative errors: mean, median and worst of the absolute values, and the signed mean (bias)."""
    errors = frame["relative_error"].dropna()
    size = errors.abs()
    values = {"mean": size.mean(), "median": size.median(), "worst": size.max(), "bias": errors.mean()}
    return {
        "rows": len(frame),
        "predicted": int(frame["predicted"].notna().sum()),
        **{name: None if errors.empty else float(value) for name, value in values.items()},
    }


def grouped(frame: pd.DataFrame, *columns: str) -> list[dict[str, Any]]:
    """``statistics`` of every combination of some columns that occurs, sorted."""
    found = []
    for keys, part in frame.groupby(list(columns), sort=True, dropna=False):
        names = {column: bool(key) if column == "fit" else key for column, key in zip(columns, keys, strict=True)}
        found.append({**names, **statistics(part)})
    return found


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Everything that ``summary.json`` holds."""
    missing = frame[frame["predicted"].isna()]
    internal = [reason.startswith(INTERNAL) for reason in missing["reason"]]
    return {
        "rows": len(frame),
        "published_rows": published_rows(frame),
        "predicted": int(frame["predicted"].notna().sum()),
        "unpredicted": len(missing),
        "internal_errors": sum(internal),
        "by_table": grouped(frame, "table"),
        "by_quantity": grouped(frame, "table", "quantity"),
        **{f"by_{column}": grouped(frame, "table", "quantity", column) for column in GROUPS},
        "level_a": level_a(frame),
        "reasons": reasons(missing),
    }


def published_rows(frame: pd.DataFrame) -> int:
    """How many published rows there are: a row can publish several quantities."""
    return int(frame[["table", "figure", "id"]].drop_duplicates().shape[0])


def level_a(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By table: of the published rows with a complete configuration, how many have at least one prediction.

    One that repeats another row in every number is no measurement of its own: the two count once.
    """
    repeated = frame["reason"].fillna("").str.startswith(REPEATS)
    complete = frame[(frame["level"] == "A") & ~repeated]
    found = []
    for (table,), part in complete.groupby(["table"], sort=True):
        by_id = part.groupby("id")["predicted"].count() > 0
        predicted, rows = int(by_id.sum()), len(by_id)
        found.append({"table": table, "rows": rows, "predicted": predicted, "coverage": predicted / rows})
    return found


def reasons(missing: pd.DataFrame) -> list[dict[str, Any]]:
    """Why rows are not predicted, most frequent first."""
    counts = Counter(zip(missing["table"], missing["reason"], strict=True))
    return [{"table": table, "reason": reason, "rows": count} for (table, reason), count in counts.most_common()]


def worst_rows(frame: pd.DataFrame, count: int = 15) -> pd.DataFrame:
    """The predicted rows with the largest absolute error."""
    order = frame["relative_error"].abs().sort_values(ascending=False, kind="stable").dropna().index
    return frame.loc[order[:count]]


def is_rate(quantity: str) -> bool:
    """Whether more is faster: the error of a rate has the opposite sign of that of a time."""
    return "per_s" in quantity or quantity in ("mfu", "tflops_per_gpu")


def is_time(quantity: str) -> bool:
    """Whether the quantity is a duration."""
    return not is_rate(quantity) and (quantity.endswith(("_s", "_ms")) or quantity == "seconds")


def _relative_error(row: Row) -> float | None:
    if row.predicted is None or not row.measured or math.isnan(row.measured):
        return None  # a bar of height zero has no relative error
    return row.predicted / row.measured - 1.0
