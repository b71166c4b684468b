"""Protects against wrong tables: what is damaged is named by file, row and column, and failed rows are left out."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from profiles.errors import FileFormatError
from profiles.lookup.table import read_card, read_table
from profiles.tables.write import write_table

ABOUT = {"device_string": "mine", "facts": {}}


def rows(num: int = 6) -> list[dict[str, object]]:
    return [
        {"dtype": "fp32", "m": 2**i, "n": 64, "k": 64, "latency_s": 1e-6 * (i + 1), "repeats": 9, "error": ""}
        for i in range(num)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_table(tmp_path, "gemm", rows(), ABOUT)
    return tmp_path


def rewrite(folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    """Change the table and its checksum, as somebody who edits both would."""
    import hashlib

    path = folder / "gemm.parquet"
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    card = yaml.safe_load((folder / "gemm.yaml").read_text())
    card["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "gemm.yaml").write_text(yaml.safe_dump(card))


def read(folder: Path):  # type: ignore[no-untyped-def]
    return read_table(folder / "gemm.parquet", read_card(folder / "gemm.yaml"))


def with_cell(name: str, row: int, value: object):  # type: ignore[no-untyped-def]
    def change(table: pa.Table) -> pa.Table:
        column = table.column(name).to_pylist()
        column[row] = value
        at = table.column_names.index(name)
        return table.set_column(at, name, pa.array(column, table.schema.field(name).type))

    return change


def test_what_is_written_is_read(folder: Path) -> None:
    table = read(folder)
    assert table.data["m"].tolist() == [1, 2, 4, 8, 16, 32]
    assert yaml.safe_load((folder / "gemm.yaml").read_text())["rows"] == 6


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("latency_s", float("nan"), "is empty"),
        ("latency_s", -1.0, "is -1"),
        ("m", 0, "is 0"),
        ("latency_s", float("inf"), "is inf"),
        ("latency_s", None, "is empty"),
    ],
)
def test_a_wrong_cell_is_named_by_row_and_column(folder: Path, name: str, value: object, said: str) -> None:
    rewrite(folder, with_cell(name, 3, value))
    with pytest.raises(FileFormatError, match=rf"gemm\.parquet: row 4, column '{name}' {said}"):
        read(folder)


def test_missing_rows_are_named(folder: Path) -> None:
    rewrite(folder, lambda table: table.slice(0, 4))
    with pytest.raises(FileFormatError, match=r"row 5, column 'dtype' is missing: the file has 4 rows"):
        read(folder)


def test_a_missing_column_is_named(folder: Path) -> None:
    rewrite(folder, lambda table: table.drop_columns(["k"]))
    with pytest.raises(FileFormatError, match="column 'k' is missing"):
        read(folder)


@pytest.mark.parametrize("keep", [0, 10, 200, -10])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    path = folder / "gemm.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match=r"gemm\.parquet: truncated .* row 1, column 'dtype'.* describes 6 rows"):
        read(folder)


def test_a_failed_measurement_is_a_row_that_lookups_leave_out(tmp_path: Path) -> None:
    failed = {"dtype": "fp32", "m": 64, "n": 64, "k": 64, "latency_s": None, "error": "RuntimeError: out of memory"}
    write_table(tmp_path, "gemm", [*rows(), failed], ABOUT)
    assert pq.read_table(tmp_path / "gemm.parquet").num_rows == 7
    assert yaml.safe_load((tmp_path / "gemm.yaml").read_text())["failed_rows"] == 1
    assert read(tmp_path).data["m"].tolist() == [1, 2, 4, 8, 16, 32]
