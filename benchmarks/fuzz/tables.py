"""Changed parquet tables that are parquet still: other cells, types, columns and row counts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from random import Random

CELLS: tuple[Any, ...] = (
    None,
    0,
    -1,
    1,
    2**31 - 1,
    0.5,
    1e300,
    5e-324,
    float("nan"),
    float("inf"),
    "",
    "x",
    True,
    b"z",
)
TYPES = (
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.bool_(),
    pa.binary(),
    pa.timestamp("s"),
    pa.decimal128(38, 3),
    pa.list_(pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.null(),
)


def changed_table(random: Random, seed: bytes) -> bytes:
    """The bytes of ``seed``, a parquet file, with one to three changes that keep it one."""
    table = pq.read_table(io.BytesIO(seed))
    for _ in range(random.choice((1, 1, 2, 3))):
        table = random.choice((_cell, _cell, _retype, _retype, _rename, _drop, _rows, _spread, _text))(random, table)
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _cell(random: Random, table: pa.Table) -> pa.Table:
    if not table.num_columns or not table.num_rows:
        return table
    at = random.randrange(table.num_columns)
    column = table.column(at).to_pylist()
    column[random.randrange(len(column))] = random.choice(CELLS)
    return _with(table, at, column, table.schema.field(at).type)


def _retype(random: Random, table: pa.Table) -> pa.Table:
    if not table.num_columns:
        return table
    at = random.randrange(table.num_columns)
    return _with(table, at, table.column(at).to_pylist(), random.choice(TYPES))


def _with(table: pa.Table, at: int, column: list[Any], kind: pa.DataType) -> pa.Table:
    """The table with another column at a place, where Arrow can make one of these values at all."""
    for wanted in (kind, None):
        try:
            array = pa.array(column, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        return table.set_column(at, table.column_names[at], array)
    return table


def _rename(random: Random, table: pa.Table) -> pa.Table:
    names = list(table.column_names)
    if names:
        names[random.randrange(len(names))] = random.choice(["", "m", "x", "error", "latency_s", "\x00"])
    return table.rename_columns(names)


def _drop(random: Random, table: pa.Table) -> pa.Table:
    return table.remove_column(random.randrange(table.num_columns)) if table.num_columns else table


def _rows(random: Random, table: pa.Table) -> pa.Table:
    changed: pa.Table = random.choice(
        (table.slice(0, 0), table.slice(1), pa.concat_tables([table, table]), table.slice(0, 1), pa.table({}))
    )
    return changed


def _spread(random: Random, table: pa.Table) -> pa.Table:
    """Thousands of rows that share no size: a grid of them all would not fit into any memory."""
    num = random.choice((300, 3000))
    sizes = range(1, num + 1)
    return pa.table(
        {
            "dtype": pa.array(["bf16"] * num),
            **{name: pa.array(list(sizes), pa.int64()) for name in "mnk"},
            "latency_s": pa.array([1e-6] * num),
            "repeats": pa.array([1] * num),
            "outliers": pa.array([0] * num),
            "error": pa.array([""] * num),
        }
    )


def _text(random: Random, table: pa.Table) -> pa.Table:
    if "dtype" not in table.column_names or not table.num_rows:
        return table
    names = [random.choice(["bf16", "fp8", "int4", "x" * 1000, "\x00", "fp32"]) for _ in range(table.num_rows)]
    return _with(table, table.column_names.index("dtype"), names, pa.string())
