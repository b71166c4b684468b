"""What adaptive sampling saves: the imported tables measured again in thought, point by point.

    python -m benchmarks.adaptive_sampling [--device h100-80gb-sxm] [--target 0.05]

A table's own rows stand for the machine. Sampling stops at the target by what it expects itself; then every row of the
table is predicted and compared. A regular grid of about as many points is shown beside it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from profiles.lookup.grid import build_grid
from profiles.records import Basis
from profiles.store import load_device
from profiles.tables.sampling import AdaptiveGrid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from profiles.lookup.grid import RatioGrid
    from profiles.records import Floats

TABLES = ("gemm", "attention_prefill", "attention_decode")


def sample(grid: RatioGrid, target: float) -> tuple[AdaptiveGrid, int]:
    """Sample a full grid until the expected error is within ``target``; returns it and the points that there are."""
    axes = [np.exp(axis) for axis in grid.ln_axes]
    allowed = grid.cell_basis == Basis.MEASURED
    found = AdaptiveGrid(axes, lambda *sizes: np.ones(()), allowed, order_of(grid))
    while True:
        for index in found.wanted():
            found.observe(index, float(np.exp(grid.ln_ratio[index])))
        if found.expected_error() <= target or not found.refine():
            return found, int(allowed.sum())


def order_of(grid: RatioGrid) -> tuple[int, ...]:
    """The fill order that the lookups use."""
    return (0, 2, 1) if grid.ln_ratio.ndim == 3 else (0, 1)


def errors(truth: RatioGrid, made: RatioGrid) -> Floats:
    """Relative error at every measured point of ``truth``."""
    mesh = np.meshgrid(*(np.exp(axis) for axis in truth.ln_axes), indexing="ij")
    ratio, _ = made.at(*mesh)
    return np.asarray(np.abs(np.expm1(np.log(ratio) - truth.ln_ratio))[truth.cell_basis == Basis.MEASURED])


def regular(grid: RatioGrid, points: int) -> tuple[RatioGrid, int]:
    """Every n-th size of each axis, with the n whose number of points is nearest."""
    best: tuple[int, NDArray[np.bool_]] | None = None
    for stride in range(2, 12):
        chosen = [sorted({*range(0, axis.size, stride), axis.size - 1}) for axis in grid.ln_axes]
        mask = np.zeros(grid.ln_ratio.shape, dtype=np.bool_)
        mask[np.ix_(*chosen)] = True
        mask &= grid.cell_basis == Basis.MEASURED
        if best is None or abs(int(mask.sum()) - points) < abs(best[0] - points):
            best = (int(mask.sum()), mask)
    assert best is not None, "there is a stride"
    sizes = [np.exp(axis)[i] for axis, i in zip(grid.ln_axes, np.nonzero(best[1]), strict=True)]
    return build_grid(sizes, np.exp(grid.ln_ratio[best[1]]), order_of(grid)), best[0]


def study(device: str, table: str, target: float) -> dict[str, Any]:
    """One table: its largest grid."""
    grid = max(load_device(device).tables.grids(table), key=lambda g: int((g.cell_basis == Basis.MEASURED).sum()))
    found, full = sample(grid, target)
    mine = errors(grid, found.grid())
    other, points = regular(grid, found.num_measured)
    theirs = errors(grid, other)
    return {
        "table": table,
        "full": full,
        "measured": found.num_measured,
        "mean": float(mine.mean()),
        "median": float(np.median(mine)),
        "p90": float(np.quantile(mine, 0.9)),
        "regular": points,
        "regular_mean": float(theirs.mean()),
        "regular_median": float(np.median(theirs)),
        "regular_p90": float(np.quantile(theirs, 0.9)),
    }


def main() -> None:
    """Print a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="h100-80gb-sxm")
    parser.add_argument("--target", type=float, default=0.05)
    options = parser.parse_args()
    print("table                full  measured   share    mean  median     90 % | regular    mean  median     90 %")
    for table in TABLES:
        r = study(options.device, table, options.target)
        print(
            f"{table:18s} {r['full']:6d} {r['measured']:9d} {r['measured'] / r['full']:7.1%} {r['mean']:7.1%} "
            f"{r['median']:7.1%} {r['p90']:8.1%} | {r['regular']:7d} {r['regular_mean']:7.1%} "
            f"{r['regular_median']:7.1%} {r['regular_p90']:8.1%}"
        )


if __name__ == "__main__":
    main()
