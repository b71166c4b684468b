"""How wrong a lookup between measured points is: each point left out, and predicted from its neighbours.

A point inside the hull is taken out of its line along one size (all other sizes fixed) and interpolated as a lookup
would from the points before and after it. The gap is then twice as wide as any gap of the table, so the error is an
upper estimate of what a lookup halfway between two points is off by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from profiles.device import DeviceProfile
    from profiles.lookup.grid import RatioGrid


@dataclass(frozen=True)
class LeftOut:
    """Relative errors of points that were left out: their number, median, and 90th and 99th percentile."""

    points: int
    median: float
    p90: float
    p99: float


def left_out_errors(grid: RatioGrid) -> list[Floats]:
    """Relative error of each measured point that has measured neighbours, one array for each size axis."""
    known = grid.cell_basis == Basis.MEASURED
    return [
        _along(np.moveaxis(grid.ln_ratio, axis, -1), np.moveaxis(known, axis, -1), grid.ln_axes[axis])
        for axis in range(grid.ln_ratio.ndim)
    ]


def neighbours(known: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index of the nearest known cell before and after each (not itself), along the last axis; -1 and size if none."""
    size = known.shape[-1]
    index = np.arange(size)
    upto = np.maximum.accumulate(np.where(known, index, -1), axis=-1)
    after = np.minimum.accumulate(np.where(known, index, size)[..., ::-1], axis=-1)[..., ::-1]
    before = np.concatenate([np.full((*known.shape[:-1], 1), -1), upto[..., :-1]], axis=-1)
    behind = np.concatenate([after[..., 1:], np.full((*known.shape[:-1], 1), size)], axis=-1)
    return before, behind


def _along(value: Floats, known: NDArray[np.bool_], ln_axis: Floats) -> Floats:
    if ln_axis.size < 3:
        return np.zeros(0)
    before, behind = neighbours(known)
    inside = known & (before >= 0) & (behind < ln_axis.size)
    low, high = np.clip(before, 0, None), np.clip(behind, None, ln_axis.size - 1)
    left, right = np.take_along_axis(value, low, -1), np.take_along_axis(value, high, -1)
    span = ln_axis[high] - ln_axis[low]
    weight = np.where(span > 0, (ln_axis - ln_axis[low]) / np.where(span > 0, span, 1.0), 0.0)
    predicted = left + weight * (right - left)
    return np.asarray(np.abs(np.expm1(predicted - value))[inside])


def summary(errors: Iterable[Floats]) -> LeftOut | None:
    """Statistics over all arrays together; ``None`` where no point could be left out."""
    together = np.concatenate([np.zeros(0), *errors])
    if together.size == 0:
        return None
    median, p90, p99 = (float(np.quantile(together, q)) for q in (0.5, 0.9, 0.99))
    return LeftOut(together.size, median, p90, p99)


def table_errors(device: DeviceProfile) -> dict[str, LeftOut]:
    """Statistics of every table of a device that prices are looked up in, over all its grids and sizes."""
    found = {}
    for name in sorted(device.tables.cards):
        errors: Sequence[Floats] = [e for grid in device.tables.grids(name) for e in left_out_errors(grid)]
        statistics = summary(errors)
        if statistics is not None:
            found[name] = statistics
    return found
