"""Predict the published figures of the HybridFlow paper and print the errors and the speed-ups.

    python -m benchmarks.paper_figures [FOLDER]

The predictions are those of ``benchmarks.validation``; here they are read as the paper prints them.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from benchmarks.validation.paper import predict

PUBLISHED = Path(__file__).parent / "published"
REFERENCE = "hybridflow"


def frame_of(folder: Path) -> pd.DataFrame:
    """One line per published quantity: its fields and ``error``, predicted over measured less one."""
    rows = predict(folder)
    table = pd.DataFrame([asdict(row) for row in rows])
    return table.assign(error=[row.relative_error for row in rows])


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Mean and worst absolute error by figure, system, placement and quantity."""
    there = table[table.predicted.notna()].astype({"error": float})
    groups = there.groupby(["figure", "system", "placement", "quantity"]).error
    return groups.agg(
        n="count", mean=lambda e: e.abs().mean(), worst=lambda e: e.abs().max(), bias="mean"
    ).reset_index()


def speed_ups(table: pd.DataFrame) -> pd.DataFrame:
    """HybridFlow's throughput over each other system's, mean and largest over the bars: published beside predicted."""
    tokens = table[(table.quantity == "tokens_per_s") & (table.placement == "")]
    cell = tokens.id.str.rsplit(":", n=1).str[0]
    rows = []
    for (figure, system), bars in tokens.assign(cell=cell).groupby(["figure", "system"]):
        if system == REFERENCE:
            continue
        ours = tokens.assign(cell=cell)[(tokens.figure == figure) & (tokens.system == REFERENCE)].set_index("cell")
        ours = ours[["measured", "predicted"]].rename(columns={"measured": "published", "predicted": "simulated"})
        both = bars.set_index("cell").join(ours, how="inner").astype({"predicted": float, "simulated": float})
        published = both.published / both.measured
        predicted = (both.simulated / both.predicted).dropna()
        rows.append((figure, system, len(both), published.mean(), published.max(), predicted.mean(), predicted.max()))
    columns = ["figure", "over", "bars", "published mean", "published max", "predicted mean", "predicted max"]
    return pd.DataFrame(rows, columns=columns)


def winners(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest placement of each cell, published and predicted, and how much slower the predicted one was."""
    seconds = table[(table.quantity == "iteration_s") & (table.placement != "") & table.predicted.notna()]
    cells = seconds.assign(cell=seconds.id.str.rsplit(":", n=1).str[0]).groupby("cell")
    rows = []
    for cell, bars in cells:
        best, ours = bars.loc[bars.measured.astype(float).idxmin()], bars.loc[bars.predicted.astype(float).idxmin()]
        rows.append((cell, best.placement, ours.placement, ours.measured / best.measured - 1))
    return pd.DataFrame(rows, columns=["cell", "published", "predicted", "regret"])


def main() -> None:
    """Print errors, winners and speed-ups."""
    table = frame_of(Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED)
    print("Errors, predicted / measured - 1\n" + errors(table).round(3).to_string(index=False), "\n")
    won = winners(table)
    if len(won):
        right = int((won.published == won.predicted).sum())
        print(f"Fastest placement right in {right} of {len(won)} cells, mean regret {won.regret.mean():.1%}")
        print(won.round(3).to_string(index=False), "\n")
    print("HybridFlow's throughput over other systems\n" + speed_ups(table).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
