"""Protects widths of intervals from a family that was measured often: its rows count for few, off alike as they are."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.validation.alike import correlation, counts
from benchmarks.validation.calibrate import half_width


def families_of(shared, num_families=200, rows=6):
    """Rows of one cluster whose sizes have as much of their variance in common within a family."""
    draws = np.random.default_rng(0).standard_normal((num_families, rows + 1))
    sizes = np.sqrt(shared) * draws[:, :1] + np.sqrt(1.0 - shared) * draws[:, 1:]
    names = np.repeat([f"f{i}" for i in range(num_families)], rows)
    return pd.DataFrame({"cluster": "training/dense/blackwell", "family": names, "size": np.abs(sizes).ravel()})


def test_rows_of_a_family_that_are_off_alike_count_for_few():
    """Of equal rows all together for one, of independent ones each for itself; between by the correlation found."""
    same, apart = families_of(1.0), families_of(0.0)
    assert correlation(same) == pytest.approx(1.0)
    assert counts(same) == pytest.approx(np.full(1200, 1 / 6))
    assert correlation(apart) == pytest.approx(0.0, abs=0.04)
    some = families_of(0.6).assign(size=lambda rows: rows["size"] ** 2)  # squares share the square of it
    assert correlation(some) == pytest.approx(0.36, abs=0.08)
    assert correlation(families_of(0.5, rows=1)) == 0.0, "nothing repeats"


def test_one_much_measured_family_does_not_set_the_width():
    """Forty rows of one family that is near do not outweigh ten families that are not."""
    near = families_of(1.0, 1, 40).assign(size=0.02)
    others = families_of(1.0, 10, 2).assign(
        size=np.repeat(np.linspace(0.1, 0.5, 10), 2), family=np.repeat(range(10), 2)
    )
    both = pd.concat([near, others], ignore_index=True)
    assert half_width(both, "training/dense/blackwell") >= 0.45
