"""Protects what an interruption may cost: rows on disk stay, a half-written line goes, other damage is named."""

from pathlib import Path

import pytest

from executor.profiling.journal import Journal
from executor.profiling.statistics import summarise
from profiles.errors import FileFormatError, InputError

HEADER = {"device_string": "mine", "dtype": "fp32"}
KEY = {"dtype": "fp32", "m": 4, "n": 4, "k": 4}


def filled(path: Path, num: int = 3) -> Path:
    with Journal(path, HEADER) as journal:
        for m in range(1, num + 1):
            journal.add("gemm", {**KEY, "m": m}, summarise([1e-6 * m]))
    return path


def test_rows_are_there_again(tmp_path: Path) -> None:
    journal = Journal(filled(tmp_path / "j"), HEADER)
    assert journal.has("gemm", {**KEY, "m": 2}) and not journal.has("gemm", {**KEY, "m": 9})
    assert [row["latency_s"] for row in journal.of("gemm")] == [1e-6, 2e-6, 3e-6]
    assert journal.result("gemm", {**KEY, "m": 3})["latency_s"] == 3e-6


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_was_being_written_is_lost_and_no_other(tmp_path: Path, cut: int) -> None:
    path = filled(tmp_path / "j")
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, HEADER) as journal:
        assert len(journal.rows) == 2
        journal.add("gemm", {**KEY, "m": 3}, summarise([3e-6]))
    assert len(Journal(path, HEADER).rows) == 3


def test_damage_elsewhere_is_named_by_row_and_column(tmp_path: Path) -> None:
    path = filled(tmp_path / "j")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1], "{nonsense", lines[3]]) + "\n")
    with pytest.raises(FileFormatError, match=r"row 2 \(line 3\) is not JSON"):
        Journal(path, HEADER)
    path.write_text("\n".join([lines[0], lines[1].replace('"result"', '"resolt"')]) + "\n")
    with pytest.raises(FileFormatError, match="row 1, column 'result' is missing"):
        Journal(path, HEADER)


def test_another_machines_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="measured with device_string mine, this is other"):
        Journal(filled(tmp_path / "j"), {**HEADER, "device_string": "other"})


def test_a_failure_is_a_row(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", HEADER) as journal:
        journal.add_failure("gemm", KEY, "RuntimeError: no memory")
    again = Journal(tmp_path / "j", HEADER)
    assert again.has("gemm", KEY) and again.of("gemm")[0]["error"] == "RuntimeError: no memory"
