"""What makes a table unusable, said by row and column: a truncated file, a missing row, a number that cannot be.

A measurement that failed is a row too: it has the reason in column ``error`` and no time, and lookups leave it out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

TIME = "latency_s"
ERROR = "error"
MAY_BE_EMPTY = frozenset({ERROR, "low_s", "high_s"})
MAY_BE_ZERO = frozenset({"repeats", "outliers", "idle_ms", "neighbours"})


def check_table(path: Path, table: pa.Table, units: Mapping[str, str], rows: int | None) -> None:
    """Raise ``FileFormatError`` that names the first column or cell that is wrong.

    Parameters
    ----------
    path
        For messages.
    table
        As read.
    units, rows
        Columns with their units, and the number of rows, as the sidecar has them (none stated: not checked).
    """
    for name in units:
        if name not in table.column_names:
            raise FileFormatError(f"{path}: column '{name}' is missing, {path.stem}.yaml has it")
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise FileFormatError(f"{path}: column '{name}' is there twice")
        if units and name not in units:
            raise FileFormatError(f"{path}: column '{name}' is not in {path.stem}.yaml")
    if rows is not None and table.num_rows != rows:
        last = table.column_names[0] if table.column_names else "?"
        row, what = (table.num_rows + 1, "is missing") if table.num_rows < rows else (rows + 1, "should not be there")
        raise FileFormatError(
            f"{path}: row {row}, column '{last}' {what}: the file has {table.num_rows:,} rows, {path.stem}.yaml "
            f"says {rows:,}"
        )
    failed = _failed_rows(table)
    for name in table.column_names:
        _check_column(path, name, table.column(name), failed)


def _failed_rows(table: pa.Table) -> NDArray[np.bool_]:
    import numpy as np

    if ERROR not in table.column_names:
        return np.zeros(table.num_rows, dtype=np.bool_)
    return np.asarray([bool(text) for text in table.column(ERROR).to_pylist()], dtype=np.bool_)


def _has_empty(column: pa.ChunkedArray) -> bool:
    """Whether a text is empty; without ``unique``, for which pyarrow loads its functions first, some 60 ms."""
    import pyarrow as pa

    there = pa.types.is_string(column.type) or "" in column.combine_chunks().dictionary.to_pylist()
    return there and "" in column.to_pylist()


def _check_column(path: Path, name: str, column: pa.ChunkedArray, failed: NDArray[np.bool_]) -> None:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        if name not in MAY_BE_EMPTY and (column.null_count or _has_empty(column)):
            texts = column.to_pylist()
            raise _wrong(path, next(row for row, text in enumerate(texts, start=1) if not text), name, "is empty")
        return
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise FileFormatError(f"{path}: column '{name}' holds {column.type}, numbers or names are expected")
    values = numbers_of(column.combine_chunks())
    with np.errstate(invalid="ignore"):
        good = np.isfinite(values) & ((values >= 0) if name in MAY_BE_ZERO else (values > 0))
    if good.all():
        return
    for row in (int(i) for i in np.flatnonzero(~good)):
        value: Any = values[row]
        unknown = value is None or (isinstance(value, float | np.floating) and math.isnan(value))
        if failed[row] and (name == TIME or name in MAY_BE_EMPTY or name in MAY_BE_ZERO) and unknown:
            continue
        if name in MAY_BE_EMPTY and unknown:
            continue
        raise _wrong(path, row + 1, name, "is empty" if unknown else f"is {value}")


def numbers_of(column: pa.Array) -> NDArray[Any]:
    """The numbers of a column, missing ones as NaN; pyarrow's own way loads pandas first, a third of a second.

    Parameters
    ----------
    column
        Whole or floating-point numbers, ``[N]``.

    Returns
    -------
    NDArray[Any]
        The same, ``[N]``.
    """
    import numpy as np
    import pyarrow as pa

    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if column.null_count or not len(column) or not plain:  # words are no key of a price, and do no harm
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(np.from_dlpack(column))


def _wrong(path: Path, row: int, name: str, what: str) -> FileFormatError:
    return FileFormatError(
        f"{path}: row {row:,}, column '{name}' {what}; every entry must be a positive, finite number"
    )
