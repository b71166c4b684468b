"""Protects adaptive sampling: straight lines need their ends, bends attract points, the target is kept and it saves."""

import numpy as np

from benchmarks.adaptive_sampling import errors, sample
from profiles.lookup.grid import build_grid
from profiles.store import load_device
from profiles.tables.sampling import AdaptiveGrid

AXIS = 2.0 ** np.arange(17)


def run(ratio, target: float) -> AdaptiveGrid:  # type: ignore[no-untyped-def]
    grid = AdaptiveGrid([AXIS], lambda x: np.ones(()), np.ones(AXIS.size, dtype=bool))
    while True:
        for (i,) in grid.wanted():
            grid.observe((i,), float(ratio(AXIS[i])))
        if grid.expected_error() <= target or not grid.refine():
            return grid


def test_a_power_law_needs_three_points() -> None:
    assert run(lambda x: x**0.7, 0.01).num_measured == 3


def test_points_go_where_the_efficiency_bends() -> None:
    found = run(lambda x: np.maximum(x, 2.0**10), 0.02)
    measured = np.exp(found.grid().ln_axes[0])
    assert {2.0**9, 2.0**10, 2.0**11} <= set(np.round(measured))
    assert found.num_measured < AXIS.size
    assert (np.diff(np.log2(measured)) >= 2).any()  # far from the bend gaps stay wide


def test_failed_points_are_not_asked_for_again() -> None:
    grid = AdaptiveGrid([AXIS], lambda x: np.ones(()), np.ones(AXIS.size, dtype=bool))
    for index in grid.wanted():
        grid.observe(index, None if index == (8,) else 1.0)
    assert grid.wanted() == [] and grid.num_measured == 2


def test_what_may_not_be_measured_is_never_asked_for() -> None:
    allowed = AXIS < 1000
    grid = AdaptiveGrid([AXIS], lambda x: np.ones(()), allowed)
    assert all(allowed[i] for (i,) in grid.wanted())


def test_a_real_table_is_reached_with_a_hundredth_of_its_points() -> None:
    (truth, *_) = load_device("h100-80gb-sxm").tables.grids("gemm")
    found, full = sample(truth, 0.05)
    off = errors(truth, found.grid())
    assert found.num_measured < 0.02 * full
    assert np.median(off) < 0.05 and off.mean() < 0.08
    assert build_grid(([1.0],), [1.0]).ln_ratio.size == 1
