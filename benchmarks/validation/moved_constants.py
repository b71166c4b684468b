"""Does the gate on accuracy see a constant that moved? Each fitted constant a fifth up and down, in memory only.

    python -m benchmarks.validation.moved_constants [--share 0.2] [--out FILE.csv]

A few of the rows that a constant was fitted on are predicted first, then all of them, their families, and everything,
until the gate sees it.
What stands in FILE.csv already is not tried again. Exit code 1 where a constant moved unseen.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.validation.ablation import PUBLISHED, fitted_rows, predicted
from benchmarks.validation.committed import family_errors, moved, worse
from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.overrides import Value, current_value, overridden
from profiles.atomic_write import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW = 3
"""Rows that are tried first: a whole family takes up to a minute."""
KEY = ["table", "figure", "id", "quantity"]


@dataclass(frozen=True)
class Seen:
    """How the gate saw a change: ``worse``, only ``moved``, or not at all (empty), and the first line that it said."""

    file: str
    constant: str
    factor: float
    rule: str
    families: int
    first: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation.moved_constants", description=__doc__)
    parser.add_argument("--share", type=float, default=0.2, help="how far each constant is moved")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="where results are kept, and taken up again")
    options = parser.parse_args(arguments)
    found = _read(options.out)
    known = {(line.file, line.constant, line.factor) for line in found}
    frame = predicted(PUBLISHED)
    for constant in fit_constants():
        for factor in (1.0 - options.share, 1.0 + options.share):
            if (constant.file, constant.constant, factor) in known:
                continue
            found.append(seen(constant, factor, frame))
            print(f"{constant.file}: {constant.constant} x {factor:g}: {found[-1].first or 'NOT SEEN'}", flush=True)
            if options.out is not None:
                write_atomically(options.out, pd.DataFrame(map(asdict, found)).to_csv(index=False))
    unseen = sum(not line.rule for line in found)
    print(f"{len(found) - unseen} of {len(found)} changes are seen")
    return 1 if unseen else 0


def seen(constant: FitConstant, factor: float, frame: pd.DataFrame) -> Seen:
    """What the gate says with a constant at ``factor`` times its value; ``frame`` is the report without the change.

    Rows that are not predicted again stay as they were.
    """
    before = family_errors(frame)
    there = frame["predicted"].notna()  # others may be left out for what stands beside them
    own = fitted_rows(frame, constant) & there
    families = frame["family"].isin(frame.loc[own, "family"]) & frame["table"].isin(frame.loc[own, "table"]) & there
    few = own & own.cumsum().isin(np.linspace(1, own.sum(), FEW).round())
    for wanted in (few, own, families, there):
        with overridden({constant: moved_value(constant, factor)}):
            found = predicted(PUBLISHED, frame[wanted]).set_index(KEY)
        again = (
            found.reindex(pd.MultiIndex.from_frame(frame.loc[wanted, KEY])).reset_index().set_index(frame.index[wanted])
        )
        if wanted is not there:  # some rows cannot be predicted without others of their table
            again = again[again["predicted"].notna()]
        now = family_errors(pd.concat([frame.drop(index=again.index), again]).sort_index())
        lines = moved(now, before)
        if lines:
            rule = "worse" if worse(now, before) else "moved"
            return Seen(constant.file, constant.constant, factor, rule, len(lines), lines[0])
    return Seen(constant.file, constant.constant, factor, "", 0, "")


def moved_value(constant: FitConstant, factor: float) -> Value:
    """The constant's value times a factor; whole numbers stay whole, and a share of nothing becomes one of a fifth."""
    value = current_value(constant)
    if value == 0:
        return abs(factor - 1.0)
    if isinstance(value, tuple):
        return tuple(round(v * factor) for v in value)
    return round(value * factor) if isinstance(value, int) else value * factor


def _read(path: Path | None) -> list[Seen]:
    """Results of an earlier call, if any."""
    if path is None or not path.is_file():
        return []
    return [Seen(**line) for line in pd.read_csv(path, keep_default_na=False).to_dict(orient="records")]


if __name__ == "__main__":
    sys.exit(main())
