"""Run the predictors on the tables that were given, and make sure that every published row comes back."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.validation.fit import is_fit
from benchmarks.validation.guard import INTERNAL, guarded
from benchmarks.validation.names import number, text_of
from benchmarks.validation.rows import Row
from benchmarks.validation.tables import TableKind, quantity_rows, read_tables
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# Per file of the paper: what names a row, and what it publishes.
PAPER_QUANTITIES = {"tokens_per_s", "iteration_s", "transition_s", "generation_s", "seconds"}
"""Columns of the paper's figures that hold a published number."""


def predicted_tables(kind: TableKind, files: Sequence[Path]) -> list[Row]:
    """Every quantity of every row of some files, predicted or with the reason why not.

    Raises
    ------
    InputError
        A file is no table of this kind.
    """
    table = read_tables(kind, files)
    listed = [row for cells in table.to_dict(orient="records") for row in quantity_rows(kind, _named(cells))]
    found = _guarded_run(listed, lambda: _predictor(kind)(table))
    families = {row.id: row.family for row in listed}
    return [_finished(replace(row, family=families.get(row.id, ""))) for row in _complete(listed, found)]


def predicted_paper(folder: Path) -> list[Row]:
    """Every bar of the paper's figures that the folder holds (``paper_*.csv``), predicted or with the reason why not.

    Raises
    ------
    InputError
        The folder holds no such table, or one cannot be read.
    """
    listed = paper_rows(folder)
    found = _guarded_run(listed, lambda: _predictor("paper")(folder))
    figures = {row.figure for row in found}
    # A figure that the predictor left out altogether is listed; ids inside a figure are the predictor's own.
    missing = [row.without("no prediction of this figure") for row in listed if row.figure not in figures]
    return [_finished(row) for row in [*found, *missing]]


def paper_rows(folder: Path) -> list[Row]:
    """The bars of the paper's figures, without predictions; raises as ``predicted_paper``."""
    files = sorted(folder.glob("paper_*.csv"))
    if not files:
        raise InputError(f"{folder}: holds no paper_*.csv")
    return [row for file in files for row in _paper_file(file)]


def _paper_file(file: Path) -> list[Row]:
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as a CSV table ({' '.join(str(error).split())[:200]})") from None
    table.columns = [str(column).strip().lower() for column in table.columns]
    if not PAPER_QUANTITIES & set(table.columns):
        raise InputError(f"{file}: it has none of the columns {', '.join(sorted(PAPER_QUANTITIES))}")
    rows = []
    for cells in table.to_dict(orient="records"):
        values = {q: number(cells.get(q)) for q in sorted(PAPER_QUANTITIES)}
        row_id = "-".join(text_of(cell) for name, cell in cells.items() if name not in PAPER_QUANTITIES)
        figure = file.stem.split("_")[1]
        base = Row("paper", row_id, "", float("nan"), figure=figure, system=text_of(cells.get("system")))
        rows += [replace(base, quantity=q, measured=v) for q, v in values.items() if v is not None] or [
            base.without("the row publishes no number")
        ]
    return rows


def _predictor(kind: str) -> Callable[..., list[Row]]:
    predict: Callable[..., list[Row]] = importlib.import_module(f"benchmarks.validation.{kind}").predict
    return predict


def _guarded_run(listed: list[Row], run: Callable[[], list[Row]]) -> list[Row]:
    """What a predictor returns; if it fails as a whole, every listed row with the reason."""
    try:
        # Row by row, so that one impossible value cannot hide the rest.
        return [done for row in run() for done in guarded([], lambda row=row: [row])]  # type: ignore[misc]
    except Exception as error:
        reason = f"{INTERNAL} {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return [row.without(reason) for row in listed]


def _complete(listed: list[Row], found: list[Row]) -> list[Row]:
    """What was found, and every listed row or quantity that it leaves out, with the reason."""
    seen = {(row.id, row.quantity) for row in found}
    ids = {row.id for row in found}
    rest = [row for row in listed if (row.id, row.quantity) not in seen and (row.quantity or row.id not in ids)]
    why = {row.id: row.reason for row in found if row.predicted is None}
    return [*found, *(_left_out(row, row.id in ids, why.get(row.id, "")) for row in rest)]


def _left_out(row: Row, id_known: bool, why: str) -> Row:
    if row.reason:
        return row
    if id_known:
        return row.without(why or "this quantity is not predicted")
    return row.without(f"{INTERNAL} the predictor returned nothing for this row")


def _finished(row: Row) -> Row:
    """``fit`` as ``fit_rows.yaml`` has it, and nobody else."""
    return replace(row, fit=is_fit(row.table, row.figure, row.id.split("#")[0], row.quantity))


def _named(cells: dict[object, object]) -> dict[str, object]:
    return {str(name): cell for name, cell in cells.items()}
