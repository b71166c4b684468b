"""Which sizes of a grid to measure next: where interpolation between those measured is expected to be furthest off.

The measured points form a box of chosen sizes per axis, as lookups hold them. Each chosen size is left out in turn and
its points predicted from the sizes before and after; what they are off by tells how much the efficiency bends there,
and so how far off the middle of each gap will be. The gap that promises most is halved next, on whichever axis it is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from profiles.lookup.grid import build_grid
from profiles.tables.cross_validation import LeftOut, left_out_errors, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from profiles.lookup.grid import RatioGrid
    from profiles.records import Floats

    Index = tuple[int, ...]

MANY = 1.0
"""Expected error of a gap of which nothing is known yet."""


@dataclass(eq=False)
class AdaptiveGrid:
    """Points of a full grid, of which a growing box is measured.

    Parameters
    ----------
    axes
        Sizes of each axis, ascending.
    floor
        Roofline seconds of sizes, one array per axis (they broadcast): what a measured time is divided by.
    allowed
        Which points may be measured at all (too slow or too large ones may not), shape of the grid.
    fill_order
        As in ``build_grid``.
    """

    axes: Sequence[Floats]
    floor: Callable[..., Floats]
    allowed: NDArray[np.bool_]
    fill_order: Sequence[int] | None = None
    _ln_ratio: Floats = field(init=False)
    _tried: NDArray[np.bool_] = field(init=False)
    _chosen: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._ln_ratio = np.full(self.allowed.shape, np.nan)
        self._tried = ~self.allowed
        self._chosen = [{0, (len(axis) - 1) // 2, len(axis) - 1} for axis in self.axes]

    @property
    def num_measured(self) -> int:
        return int((~np.isnan(self._ln_ratio)).sum())

    def observe(self, index: Index, latency_s: float | None) -> None:
        """Take in a time, or that the measurement failed (``None``): the point is not asked for again."""
        self._tried[index] = True
        if latency_s is not None:
            sizes = [np.asarray(axis[i]) for axis, i in zip(self.axes, index, strict=True)]
            self._ln_ratio[index] = np.log(latency_s / float(self.floor(*sizes)))

    def wanted(self) -> list[Index]:
        """Points of the chosen sizes that were not tried yet."""
        box = itertools.product(*(sorted(chosen) for chosen in self._chosen))
        return [index for index in box if not self._tried[index]]

    def refine(self) -> bool:
        """Choose one more size, where it promises most; ``False`` when all sizes are chosen."""
        best: tuple[float, int, int] | None = None
        for axis in range(len(self.axes)):
            for low, high in itertools.pairwise(sorted(self._chosen[axis])):
                if high - low < 2:
                    continue
                worth = self._expected(axis, low, high) * self._share(axis, low, high)
                if best is None or worth > best[0]:
                    best = (worth, axis, (low + high) // 2)
        if best is None:
            return False
        self._chosen[best[1]].add(best[2])
        return True

    def error(self) -> LeftOut | None:
        """Error of the measured points when each is left out; ``None`` while none can be."""
        return summary(left_out_errors(self.grid())) if self.num_measured else None

    def expected_error(self) -> float:
        """Expected error in the middle of a gap, averaged over the gaps of an axis, added up over the axes."""
        total = 0.0
        for axis in range(len(self.axes)):
            pairs = list(itertools.pairwise(sorted(self._chosen[axis])))
            total += sum(
                self._expected(axis, low, high) * self._share(axis, low, high) for low, high in pairs if high - low > 1
            )
        return total

    def grid(self) -> RatioGrid:
        """The measured points as a lookup holds them, holes filled."""
        known = ~np.isnan(self._ln_ratio)
        sizes = [axis[i] for axis, i in zip(self.axes, np.nonzero(known), strict=True)]
        return build_grid(sizes, np.exp(self._ln_ratio[known]), self.fill_order)

    def _ln_axis(self, axis: int) -> Floats:
        return np.log(np.asarray(self.axes[axis], dtype=np.float64))

    def _share(self, axis: int, low: int, high: int) -> float:
        """Share of the axis (in logarithm) that a gap covers."""
        x = self._ln_axis(axis)
        return float((x[high] - x[low]) / (x[-1] - x[0])) if x[-1] > x[0] else 0.0

    def _expected(self, axis: int, low: int, high: int) -> float:
        """Expected error in the middle of a gap: the bend at its ends times an eighth of its width squared."""
        x = self._ln_axis(axis)
        bends = [bend for bend in (self._bend(axis, low), self._bend(axis, high)) if bend is not None]
        return max(bends) * float(x[high] - x[low]) ** 2 / 8.0 if bends else MANY

    def _bend(self, axis: int, at: int) -> float | None:
        """Median over a size's points of what leaving it out is off by, over half the product of the gaps beside it."""
        chosen = sorted(self._chosen[axis])
        place = chosen.index(at)
        if place in (0, len(chosen) - 1):
            return None
        x = self._ln_axis(axis)
        before, after = chosen[place - 1], chosen[place + 1]
        left, here, right = (np.take(self._ln_ratio, i, axis=axis) for i in (before, at, after))
        below, above = float(x[at] - x[before]), float(x[after] - x[at])
        off = np.abs(left + below / (below + above) * (right - left) - here)
        found = off[~np.isnan(off)]
        return float(np.median(found)) / (below * above / 2.0) if found.size else None
