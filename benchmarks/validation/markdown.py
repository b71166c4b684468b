"""``summary.md``: the numbers of a report as Markdown tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarks.validation.intervals import COLUMNS as INTERVALS
from benchmarks.validation.intervals import inside_intervals
from benchmarks.validation.report import GROUPS, STATISTICS, summary, worst_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

_SHARES = frozenset(
    {
        "mean",
        "median",
        "worst",
        "bias",
        "coverage",
        "in sample",
        "worst in sample",
        "naive",
        "left out",
        "in order",
        "regret",
        "inside",
    }
)


def table(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A Markdown table; errors and shares as percentages, empty where there is no number."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(cell(record.get(column), column) for column in columns)} |" for record in records]
    return "\n".join(lines)


def cell(value: object, column: str) -> str:
    """The text of one cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "fitted" if value else "not fitted"
    if column in _SHARES and isinstance(value, float):
        return f"{value:+.1%}" if column == "bias" else f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value).replace("|", "/").replace("\n", " ")


def summary_text(frame: pd.DataFrame) -> str:
    """The whole of ``summary.md``."""
    parts = ["# Predicted against published", *sections(frame)]
    if lines := inside_intervals(frame):
        parts += ["## Inside the 90 % intervals", table(lines, INTERVALS)]
    return "\n\n".join(parts) + "\n"


def sections(frame: pd.DataFrame) -> list[str]:
    """Headings and tables, without a title."""
    found = summary(frame)
    counts = (
        f"{found['published_rows']:,} published rows with {found['rows']:,} quantities: {found['predicted']:,} "
        f"predicted, {found['unpredicted']:,} listed with a reason, {found['internal_errors']:,} internal errors."
    )
    statement = "Errors are predicted / measured - 1; mean, median and worst are of absolute values, bias is signed."
    parts = [counts, statement]
    parts += ["## By table and quantity", table(found["by_quantity"], ("table", "quantity", *STATISTICS))]
    if found["level_a"]:
        parts += ["## Complete configurations (level A) with a prediction"]
        parts += [table(found["level_a"], ("table", "rows", "predicted", "coverage"))]
    for column in GROUPS:
        records = [r for r in found[f"by_{column}"] if r["predicted"] and r[column] != ""]
        if records:
            parts += [f"## By {column.replace('_', ' ')}", table(records, ("table", "quantity", column, *STATISTICS))]
    parts += worst_section(frame)
    if found["reasons"]:
        parts += ["## Not predicted", table(found["reasons"], ("table", "rows", "reason"))]
    return parts


def worst_section(frame: pd.DataFrame) -> list[str]:
    """The rows that are furthest off."""
    worst = worst_rows(frame)
    if worst.empty:
        return []
    records = worst.rename(columns={"relative_error": "bias"}).to_dict(orient="records")
    named = [{str(k): v for k, v in record.items()} for record in records]
    columns = ("table", "figure", "id", "quantity", "device", "measured", "predicted", "bias", "fit")
    return ["## Worst rows", table(named, columns).replace("| bias |", "| error |")]
