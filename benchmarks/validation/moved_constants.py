"""Does the gate on accuracy see a constant that moved? Each fitted constant a fifth up and down, in memory only.

    python -m benchmarks.validation.moved_constants [--share 0.2]

The families that a constant was fitted on are predicted first, and everything only where the gate let those through.
Exit code 1 where a constant moved unseen.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from benchmarks.validation.ablation import PUBLISHED, fitted_rows, predicted
from benchmarks.validation.committed import family_errors, worse
from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.overrides import Value, current_value, overridden

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation.moved_constants", description=__doc__)
    parser.add_argument("--share", type=float, default=0.2, help="how far each constant is moved")
    share = parser.parse_args(arguments).share
    frame = predicted(PUBLISHED)
    unseen = 0
    for constant in fit_constants():
        for factor in (1.0 - share, 1.0 + share):
            lines = seen(constant, factor, frame)
            unseen += not lines
            where = lines[0] if lines else "NOT SEEN"
            print(f"{constant.file}: {constant.constant} x {factor:g}: {where}", flush=True)
    print(f"{2 * len(fit_constants()) - unseen} of {2 * len(fit_constants())} changes are seen")
    return 1 if unseen else 0


def seen(constant: FitConstant, factor: float, frame: pd.DataFrame) -> list[str]:
    """What the gate says with a constant at ``factor`` times its value; ``frame`` is the report without the change."""
    own = fitted_rows(frame, constant)
    for part in (
        frame[frame["family"].isin(frame.loc[own, "family"]) & frame["table"].isin(frame.loc[own, "table"])],
        frame,
    ):
        with overridden({constant: moved(constant, factor)}):
            found = predicted(PUBLISHED, part)
        again = found.merge(part[["table", "figure", "id", "quantity"]])
        if lines := worse(family_errors(again), family_errors(part)):
            return lines
    return []


def moved(constant: FitConstant, factor: float) -> Value:
    """The constant's value times a factor; whole numbers stay whole."""
    value = current_value(constant)
    if isinstance(value, tuple):
        return tuple(round(v * factor) for v in value)
    return round(value * factor) if isinstance(value, int) else value * factor


if __name__ == "__main__":
    sys.exit(main())
