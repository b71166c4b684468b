"""Where measured rows go as they are made: one JSON line each, on disk before the next measurement starts.

An interruption loses at most the row that is being measured. A last line that is not whole (the process was killed
while it wrote) is cut off when the journal is opened again; damage anywhere else is named by its line.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

from executor.profiling.cases import name_of
from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from executor.profiling.cases import Key
    from executor.profiling.statistics import Summary

KIND = "hybridmap-profile-journal"


class Journal:
    """Rows by table and key. ``header`` says what they were measured on; a journal of something else is refused."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.header = path, {"kind": KIND, **header}
        self.rows: list[dict[str, Any]] = []
        self._results: dict[Any, dict[str, Any]] = {}
        self._read()

    def __enter__(self) -> Self:
        self._file = self.path.open("a", encoding="utf-8")
        if not self.rows and self._file.tell() == 0:
            self._append(self.header)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def has(self, table: str, key: Key) -> bool:
        """Whether the row was measured already, or failed already."""
        return name_of(table, key) in self._results

    def add(self, table: str, key: Key, summary: Summary, **more: float) -> dict[str, Any]:
        """Write a measured row; ``more`` is kept with its times."""
        times = {"latency_s": summary.median_s, "low_s": summary.low_s, "high_s": summary.high_s, **more}
        if summary.cpu_share is not None:
            times["cpu_share"] = summary.cpu_share
        return self._row(table, key, {**times, "repeats": summary.repeats, "outliers": summary.outliers, "error": ""})

    def result(self, table: str, key: Key) -> dict[str, Any]:
        """What a row that the journal has says; ``KeyError`` for any other."""
        return self._results[name_of(table, key)]

    def add_failure(self, table: str, key: Key, error: str) -> dict[str, Any]:
        """Write a row without a time: what was tried, and what happened."""
        return self._row(table, key, {"latency_s": None, "repeats": 0, "outliers": 0, "error": error or "failed"})

    def of(self, table: str) -> list[dict[str, Any]]:
        """The rows of one table, keys and results together."""
        return [{**row["key"], **row["result"]} for row in self.rows if row["table"] == table]

    def _row(self, table: str, key: Key, result: dict[str, Any]) -> dict[str, Any]:
        row = {"table": table, "key": key, "result": result}
        self._append(row)
        self._keep(row)
        return row

    def _append(self, document: dict[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._results[name_of(row["table"], row["key"])] = row["result"]

    def _read(self) -> None:
        if not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")
        whole, rest = lines[:-1], lines[-1]
        if rest:  # the process ended while it wrote this line
            with self.path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in whole))
        if not whole:
            return
        self._check_header(_parsed(self.path, 1, whole[0]))
        for number, line in enumerate(whole[1:], start=2):
            row = _parsed(self.path, number, line)
            for name in ("table", "key", "result"):
                if name not in row:
                    raise FileFormatError(f"{self.path}: row {number - 1}, column '{name}' is missing")
            self._keep(row)

    def _check_header(self, found: dict[str, Any]) -> None:
        if found.get("kind") != KIND:
            raise FileFormatError(f"{self.path}: line 1 is not the header of a profile journal")
        for name, value in self.header.items():
            if found.get(name) != value:
                raise InputError(
                    f"{self.path} was measured with {name} {found.get(name)}, this is {value}; give another --out, or "
                    "delete it to start again"
                )
        self.header = found


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise FileFormatError(f"{path}: row {number - 1} (line {number}) is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: row {number - 1} (line {number}) is not a JSON object")
    return found
