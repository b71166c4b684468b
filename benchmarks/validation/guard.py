"""No row is lost and no row stops the run: whatever a prediction raises becomes the reason of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd

    from benchmarks.validation.rows import Row

INTERNAL = "internal error:"
"""What the reason of a row starts with whose prediction failed in a way that nobody expected."""


def guarded(rows: list[Row], predict: Callable[[], Iterable[Row]]) -> list[Row]:
    """The rows that ``predict`` returns; where it raises, ``rows`` with the reason.

    Parameters
    ----------
    rows
        The quantities of one published row, without predictions.
    predict
        Returns them with predictions or reasons. One that it leaves out keeps the reason it had in ``rows``, or is
        reported as an internal error.
    """
    try:
        done = list(predict())
    except HybridmapError as error:  # NotPredicted, NoBasisError, InputError: the product says why
        return [row.without(_one_line(str(error))) for row in rows]
    except Exception as error:
        return [row.without(f"{INTERNAL} {type(error).__name__}: {_one_line(str(error))}") for row in rows]
    seen = {(row.id, row.quantity) for row in done}
    left_out = [row for row in rows if (row.id, row.quantity) not in seen]
    return [*map(_checked, done), *(r if r.reason else r.without(f"{INTERNAL} not predicted") for r in left_out)]


def each(
    table: pd.DataFrame,
    rows_of: Callable[[dict[str, Any]], list[Row]],
    predict: Callable[[dict[str, Any], list[Row]], Iterable[Row]],
    refused: Mapping[str, str] | None = None,
) -> list[Row]:
    """Guard every record of a table by itself.

    Parameters
    ----------
    table
        A published table.
    rows_of
        Lists the quantities that a record publishes, without predictions; it must not raise.
    predict
        Predicts the quantities of one record.
    refused
        Ids of records that are no rows of their own, with why.
    """
    found: list[Row] = []
    for record in table.to_dict(orient="records"):
        cells = {str(column): cell for column, cell in record.items()}
        rows = rows_of(cells)
        reason = (refused or {}).get(str(cells.get("id")))
        if reason:
            found += [row.without(reason) for row in rows]
            continue
        found += guarded(rows, lambda cells=cells, rows=rows: predict(cells, rows))  # type: ignore[misc]
    return found


def _checked(row: Row) -> Row:
    """A prediction that is no finite positive number is a mistake of ours, not a statement."""
    if row.predicted is None or 0.0 < row.predicted < float("inf"):
        return row
    return row.without(f"{INTERNAL} predicted {row.predicted}")


def _one_line(text: str, limit: int = 300) -> str:
    return " ".join(text.split())[:limit] or "no message"
