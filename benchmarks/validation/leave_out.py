"""What predictions are worth for a family that no constant has seen: refit without it, then predict it.

A fit is a record: the constant, the rows that it may use and the quantity that it is fitted on (``fit_rows.yaml``), the
values between which it is sought, and the function from errors to a value. Rows of one family count together once, so
that nine releases of one benchmark are not nine votes. Constants are refitted one by one, the others as committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.validation.ablation import predicted
from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.overrides import current_value, overridden
from benchmarks.validation.report import is_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from benchmarks.validation.overrides import Value
    from profiles.records import Floats

KEY = ["table", "figure", "id", "quantity"]
TRIED = 7
"""Values at which rows are predicted; between them the logarithm of a time is interpolated."""
FINE = 201


@dataclass(frozen=True, eq=False)
class Errors:
    """Logarithm of predicted over measured *time* of a constant's rows, by value of the constant.

    Parameters
    ----------
    values
        Ascending, ``[V]``.
    log_ratio
        ``[rows, V]``.
    families
        Of each row, ``[rows]``.
    """

    values: Floats
    log_ratio: Floats
    families: tuple[str, ...]

    def without(self, family: str) -> Errors:
        """The same without the rows of one family."""
        kept = np.asarray([own != family for own in self.families], dtype=bool)
        return Errors(self.values, self.log_ratio[kept], tuple(f for f in self.families if f != family))


Estimate = "Callable[[Errors], float]"


def least_absolute(errors: Errors) -> float:
    """The value with the smallest mean absolute error in the logarithm; each family counts once."""
    fine = np.linspace(errors.values[0], errors.values[-1], FINE)
    size = np.asarray([np.abs(np.interp(fine, errors.values, row)) for row in errors.log_ratio])
    counts = pd.Series(errors.families).map(pd.Series(errors.families).value_counts()).to_numpy(dtype=float)
    return float(fine[np.argmin((size / counts[:, None]).sum(axis=0))])


@dataclass(frozen=True)
class Fit:
    """One constant that can be fitted again: what ``fit_rows.yaml`` says of it, and how errors become a value."""

    constant: FitConstant
    estimate: Callable[[Errors], float] = least_absolute

    def errors(self, frame: pd.DataFrame, folder: Path) -> Errors:
        """Predict the constant's rows at some values of it.

        Parameters
        ----------
        frame
            The report under the committed constants; it says which rows have a prediction, and their families.
        folder
            Of the published tables.
        """
        assert self.constant.span is not None, f"{self.constant.constant}: no values to seek between"
        own = frame[self.rows(frame) & frame["predicted"].notna()].set_index(KEY)
        values = np.linspace(*self.constant.span, TRIED)
        columns = []
        for value in values:
            with overridden({self.constant: float(value)}):
                found = predicted(folder, own.reset_index()).set_index(KEY)
            columns.append(log_time_ratio(found.loc[own.index]))
        return Errors(values, np.stack(columns, axis=1), tuple(own["family"]))

    def rows(self, frame: pd.DataFrame) -> pd.Series:
        """Which rows of a report the constant may be fitted on."""
        covered = [self.constant.covers(t, f, i.split("#")[0], q) for t, f, i, q in frame[KEY].to_numpy()]
        return pd.Series(covered, frame.index, dtype=bool)


def log_time_ratio(frame: pd.DataFrame) -> Floats:
    """ln(predicted / measured) of times, with the sign of a time for rates too."""
    quantities = frame.index.get_level_values("quantity") if "quantity" not in frame else frame["quantity"]
    sign = np.asarray([-1.0 if is_rate(q) else 1.0 for q in quantities])
    return np.asarray(sign * np.log(frame["predicted"].to_numpy(float) / frame["measured"].to_numpy(float)))


def fits() -> list[Fit]:
    """Every constant that ``fit_rows.yaml`` gives a span."""
    return [Fit(constant) for constant in fit_constants() if constant.span is not None]


def fitted_values(found: Iterable[tuple[Fit, Errors]], without: str = "") -> dict[FitConstant, Value]:
    """The constants as all rows give them, or as those of all other families do; one without rows stays."""
    values: dict[FitConstant, Value] = {}
    for fit, errors in found:
        kept = errors.without(without) if without else errors
        if kept.families and (not without or len(kept.families) < len(errors.families)):
            values[fit.constant] = fit.estimate(kept)
    return values


def left_out(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The report with ``left_out``: each row as constants that were fitted without its family predict it.

    A family that no fit uses keeps its prediction. A constant whose rows are all of one family has none to be refitted
    on, and takes its neutral value: without that family nobody would have known of the term.
    """
    found = [(fit, fit.errors(frame, folder)) for fit in fits()]
    out = frame.assign(left_out=frame["predicted"])
    for family in sorted({family for _, errors in found for family in errors.families}):
        values = fitted_values(found, family)
        values |= {f.constant: f.constant.neutral for f, e in found if set(e.families) == {family}}
        own = out["family"] == family
        with overridden(values):
            again = predicted(folder, frame[own]).set_index(KEY)["predicted"]
        index = pd.MultiIndex.from_frame(out.loc[own, KEY])
        out.loc[own, "left_out"] = again.reindex(index).to_numpy()
    return out


def refitted(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Each constant's committed value beside what its rows give, and the range over families left out."""
    records = []
    for fit in fits():
        errors = fit.errors(frame, folder)
        each = [fit.estimate(errors.without(f)) for f in sorted(set(errors.families)) if len(set(errors.families)) > 1]
        records.append(
            {
                "constant": fit.constant.constant,
                "file": fit.constant.file,
                "committed": current_value(fit.constant),
                "fitted": fit.estimate(errors),
                "lowest": min(each, default=float("nan")),
                "highest": max(each, default=float("nan")),
                "families": len(set(errors.families)),
            }
        )
    return pd.DataFrame(records)
