"""Which published rows a constant of the product was fitted on: ``fit_rows.yaml``, read and asked."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

FILE = Path(__file__).parent / "fit_rows.yaml"


class FitRows(BaseModel):
    """Rows of one table, as patterns; an empty list or text means all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    table: Literal["rl", "training", "generation", "paper"]
    figure: str = "*"
    ids: tuple[str, ...] = ("*",)
    quantities: tuple[str, ...] = ("*",)

    def covers(self, table: str, figure: str, row_id: str, quantity: str) -> bool:
        """Whether a published quantity is one of these rows."""
        if table != self.table or not fnmatchcase(figure, self.figure):
            return False
        return _any(row_id, self.ids) and self.covers_quantity(quantity)

    def covers_quantity(self, quantity: str) -> bool:
        """Whether a quantity of some row is one of these."""
        return _any(quantity, self.quantities)


TOTALS = {"rl": ("step_time_s", "tokens_per_s_per_gpu"), "paper": ("iteration_s", "tokens_per_s")}
"""Published quantities to which several stages add up, by table."""


class FitConstant(BaseModel):
    """One fitted constant; the fields are explained at the head of ``fit_rows.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    constant: str
    file: str
    also: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    rows: tuple[FitRows, ...]
    quantity: str
    span: tuple[float, float] | None = None
    meaning: str
    neutral: int | float | tuple[int, ...]
    error_without: str

    @model_validator(mode="after")
    def _no_total(self) -> FitConstant:
        """Refuse what several stages share: an error of one would be paid for by the constant of another."""
        wide = any(rows.table == "rl" and rows.covers_quantity(total) for rows in self.rows for total in TOTALS["rl"])
        if wide or self.quantity in TOTALS.get(self.rows[0].table, ()):
            raise ValueError(f"{self.constant} is fitted on {self.quantity}, a total of several stages")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that holds the constant."""
        return (self.file, *self.also)

    def covers(self, table: str, figure: str, row_id: str, quantity: str) -> bool:
        """Whether the constant was fitted on this published quantity."""
        return any(rows.covers(table, figure, row_id, quantity) for rows in self.rows)


@cache
def fit_constants() -> tuple[FitConstant, ...]:
    """Every fitted constant of the product."""
    return tuple(FitConstant.model_validate(entry) for entry in yaml.safe_load(FILE.read_text(encoding="utf-8")))


def is_fit(table: str, figure: str, row_id: str, quantity: str) -> bool:
    """Whether any constant was fitted on this published quantity."""
    return any(constant.covers(table, figure, row_id, quantity) for constant in fit_constants())


def _any(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
