"""What predictions are worth for a family that no constant has seen: refit without it, then predict it.

A fit is a record: the constant, the rows that it may use and the quantity that it is fitted on (``fit_rows.yaml``), the
values between which it is sought, and the function from errors to a value. Rows of one family count together once, so
that nine releases of one benchmark are not nine votes. Constants that share rows are refitted in turn, each with what
the others have moved, since each of them alone would take all of an error for its own.
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
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.validation.overrides import Value
    from profiles.records import Floats

KEY = ["table", "figure", "id", "quantity"]
TRIED = 5
"""Values at which rows are predicted; between them the logarithm of a time is interpolated."""
FINE = 201
SWEEPS = 5
"""Rounds over the constants; what one moves is added to the logarithm of a time that the others found."""
TELLS = 0.005
"""Least difference of mean errors that says something of a constant: a tenth of what a measurement repeats to."""
ROWS_OF_A_FAMILY = 8
"""Published rows that each family gives to a fit, spread over all that it has: it counts once however many they are."""


@dataclass(frozen=True, eq=False)
class Errors:
    """Logarithm of predicted over measured *time* of a constant's rows, by value of the constant.

    Parameters
    ----------
    values
        Ascending, ``[V]``.
    log_ratio
        ``[rows, V]``.
    families, rows
        Of each row, and what it is known by, ``[rows]``.
    """

    values: Floats
    log_ratio: Floats
    families: tuple[str, ...]
    rows: tuple[str, ...]

    def without(self, family: str) -> Errors:
        """The same without the rows of one family."""
        kept = np.asarray([own != family for own in self.families], dtype=bool)
        names = tuple(row for row, own in zip(self.rows, kept, strict=True) if own)
        return Errors(self.values, self.log_ratio[kept], tuple(f for f in self.families if f != family), names)

    def at(self, value: float) -> pd.Series:
        """The logarithms at one value, by row."""
        found = [float(np.interp(value, self.values, row)) for row in self.log_ratio]
        return pd.Series(found, index=list(self.rows), dtype=float)

    def moved_by(self, others: pd.Series) -> Errors:
        """The same when other constants have moved rows by so much; those that it does not name stay."""
        shift = others.reindex(list(self.rows)).fillna(0.0).to_numpy(dtype=float)
        return Errors(self.values, self.log_ratio + shift[:, None], self.families, self.rows)


Estimate = "Callable[[Errors], float]"


def least_absolute(errors: Errors, expected: float | None = None) -> float:
    """The value with the smallest mean absolute error in the logarithm; each family counts once.

    Rows do not tell values apart whose errors differ by less than ``TELLS``: of those it is the one nearest to
    ``expected``, where that is known.
    """
    fine = np.linspace(errors.values[0], errors.values[-1], FINE)
    size = np.asarray([np.abs(np.interp(fine, errors.values, row)) for row in errors.log_ratio])
    families = pd.Series(errors.families)
    counts = families.map(families.value_counts()).to_numpy(dtype=float)
    mean = (size / counts[:, None]).sum(axis=0) / families.nunique()
    if expected is None:
        return float(fine[np.argmin(mean)])
    alike = fine[mean <= mean.min() + TELLS]
    return float(alike[np.argmin(np.abs(alike - expected))])


@dataclass(frozen=True)
class Fit:
    """One constant that can be fitted again: what ``fit_rows.yaml`` says of it, and how errors become a value."""

    constant: FitConstant
    estimate: Callable[[Errors, float | None], float] = least_absolute

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
        own = spread(frame[self.rows(frame) & frame["predicted"].notna()]).set_index(KEY)
        values = np.linspace(*self.constant.span, TRIED)
        columns = []
        for value in values:
            with overridden({self.constant: float(value)}):
                found = predicted(folder, own.reset_index()).set_index(KEY)
            columns.append(log_time_ratio(found.loc[own.index]))
        names = tuple("/".join(map(str, key)) for key in own.index)
        return Errors(values, np.stack(columns, axis=1), tuple(own["family"]), names)

    def rows(self, frame: pd.DataFrame) -> pd.Series:
        """Which rows of a report the constant may be fitted on."""
        covered = [self.constant.covers(t, f, i.split("#")[0], q) for t, f, i, q in frame[KEY].to_numpy()]
        return pd.Series(covered, frame.index, dtype=bool)


def spread(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a report without those ids that a family has beyond ``ROWS_OF_A_FAMILY``."""
    kept: set[str] = set()
    for _, ids in frame.groupby("family", sort=False)["id"]:
        own = ids.unique()
        kept |= set(own[np.unique(np.linspace(0, len(own) - 1, ROWS_OF_A_FAMILY).round().astype(int))])
    return frame[frame["id"].isin(kept)]


def log_time_ratio(frame: pd.DataFrame) -> Floats:
    """ln(predicted / measured) of times, with the sign of a time for rates too."""
    quantities = frame.index.get_level_values("quantity") if "quantity" not in frame else frame["quantity"]
    sign = np.asarray([-1.0 if is_rate(q) else 1.0 for q in quantities])
    return np.asarray(sign * np.log(frame["predicted"].to_numpy(float) / frame["measured"].to_numpy(float)))


def fits() -> list[Fit]:
    """Every constant that ``fit_rows.yaml`` gives a span."""
    return [Fit(constant) for constant in fit_constants() if constant.span is not None]


def fitted_values(found: Sequence[tuple[Fit, Errors]], without: str = "") -> dict[FitConstant, Value]:
    """The constants as all rows give them, or as those of all other families do; one without rows stays."""
    kept = [(fit, errors, errors.without(without) if without else errors) for fit, errors in found]
    used = [
        (fit, own) for fit, errors, own in kept if own.families and (not without or own.families != errors.families)
    ]
    names = sorted({row for _, own in used for row in own.rows})
    moved = {fit.constant: pd.Series(0.0, index=names) for fit, _ in used}
    values: dict[FitConstant, Value] = {}
    for _ in range(SWEEPS):
        for fit, own in used:
            others = pd.Series(0.0, index=names).add(
                sum(m for c, m in moved.items() if c != fit.constant), fill_value=0.0
            )
            values[fit.constant] = best = fit.estimate(own.moved_by(others), _of_its_like(fit.constant, values))
            committed = current_value(fit.constant)
            assert not isinstance(committed, tuple), f"{fit.constant.constant}: a fit seeks one number"
            shift = own.at(best) - own.at(float(committed))
            moved[fit.constant] = shift.reindex(names).fillna(0.0)
    return values


def _of_its_like(constant: FitConstant, values: dict[FitConstant, Value]) -> float | None:
    """Mean of the same constant of engines that do the same work, as found or as it stands; none without such."""
    fitted = {c.file: c for c in fit_constants() if c.constant == constant.constant}
    found = []
    for file in constant.like:
        other = fitted.get(file) or constant.model_copy(update={"file": file, "also": ()})
        value = values.get(other, current_value(other))
        assert not isinstance(value, tuple), f"{constant.constant}: a fit seeks one number"
        found.append(float(value))
    return float(np.mean(found)) if found else None


def fit_errors(frame: pd.DataFrame, folder: Path) -> list[tuple[Fit, Errors]]:
    """Every fit with the errors of its rows, which take minutes: they serve ``left_out`` and ``refitted``."""
    return [(fit, fit.errors(frame, folder)) for fit in fits()]


def left_out(frame: pd.DataFrame, folder: Path, found: Sequence[tuple[Fit, Errors]]) -> pd.DataFrame:
    """The report with ``left_out``: each row as constants that were fitted without its family predict it.

    A family that no fit uses keeps its prediction. A constant whose rows are all of one family has none to be refitted
    on, and takes its neutral value: without that family nobody would have known of the term.
    """
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


def refitted(found: Sequence[tuple[Fit, Errors]]) -> pd.DataFrame:
    """Each constant's committed value beside what its rows give, and the range over families left out."""
    whole = fitted_values(found)
    families = sorted({family for _, errors in found for family in errors.families})
    apart = {family: fitted_values(found, family) for family in families}
    records = []
    for fit, errors in found:
        each = [values[fit.constant] for values in apart.values() if fit.constant in values]
        records.append(
            {
                "constant": fit.constant.constant,
                "file": fit.constant.file,
                "committed": current_value(fit.constant),
                "fitted": whole[fit.constant],
                "lowest": min(each, default=float("nan")),
                "highest": max(each, default=float("nan")),
                "families": len(set(errors.families)),
            }
        )
    return pd.DataFrame(records)
