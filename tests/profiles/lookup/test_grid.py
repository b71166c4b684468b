"""Protects the interpolation itself: exact on the grid, honest about holes and edges, and lazy about keys."""

import numpy as np
import pytest

from profiles.errors import FileFormatError
from profiles.lookup.grid import build_grid, by_unique_key, split_by_key
from profiles.records import Basis


def test_power_laws_are_reproduced_exactly() -> None:
    x, y = (a.ravel() for a in np.meshgrid([1.0, 4.0, 64.0], [2.0, 32.0], indexing="ij"))
    grid = build_grid((x, y), x**0.5 * y**-0.25)
    ratio, basis = grid.at([1.0, 3.0, 64.0], [2.0, 7.0, 32.0])
    np.testing.assert_allclose(ratio, [2**-0.25, 3**0.5 * 7**-0.25, 8 * 32**-0.25])
    assert basis.tolist() == [Basis.MEASURED, Basis.INTERPOLATED, Basis.MEASURED]


def test_the_edge_is_held_and_called_analytic() -> None:
    grid = build_grid(([1.0, 10.0],), [2.0, 5.0])
    ratio, basis = grid.at([0.1, 100.0, 0.0])
    np.testing.assert_allclose(ratio, [2.0, 5.0, 2.0])
    assert basis.tolist() == [Basis.ANALYTIC] * 3


def test_holes_are_interpolated_between_neighbours_and_held_beyond_them() -> None:
    rows = [(x, y) for x in (1, 2, 4) for y in (1, 2, 4) if (x, y) not in {(2, 2), (4, 4)}]
    x, y = np.array(rows).T
    grid = build_grid((x, y), x * 10.0 + (y == 4))
    ratio, basis = grid.at([2, 4, 2], [2, 4, 1])
    np.testing.assert_allclose(ratio, [20.0, 21.0, 20.0])
    assert basis.tolist() == [Basis.INTERPOLATED, Basis.ANALYTIC, Basis.MEASURED]
    # A filled corner without weight does not spoil a measured one.
    assert grid.at(4, 2)[1] == Basis.MEASURED
    assert grid.at(4, 3)[1] == Basis.ANALYTIC


def test_an_axis_of_one_point_is_held_everywhere() -> None:
    grid = build_grid(([8.0, 8.0], [1.0, 2.0]), [3.0, 6.0])
    ratio, basis = grid.at([8.0, 16.0], 2.0)
    np.testing.assert_allclose(ratio, [6.0, 6.0])
    assert basis.tolist() == [Basis.MEASURED, Basis.ANALYTIC]


def test_keys_that_are_not_together_are_refused() -> None:
    assert split_by_key([np.array([1, 1, 2])], "t") == {(1,): slice(0, 2), (2,): slice(2, 3)}
    with pytest.raises(FileFormatError, match="not sorted"):
        split_by_key([np.array([1, 2, 1])], "t")


def test_one_lookup_per_distinct_key() -> None:
    calls = []

    def lookup(key, sizes):  # type: ignore[no-untyped-def]
        calls.append(key)
        return sizes[0] * key[0], np.full(sizes[0].shape, key[0])

    value, basis = by_unique_key(([[2], [3]],), ([1.0, 10.0, 100.0],), lookup)
    np.testing.assert_allclose(value, [[2, 20, 200], [3, 30, 300]])
    assert basis.tolist() == [[2] * 3, [3] * 3] and calls == [(2,), (3,)]


def test_a_lookup_of_many_is_that_of_each_alone() -> None:
    """On, between and beyond grid points, over an axis of one size and past a hole: one size or many, bit by bit."""
    rows = [(x, y) for x in (1.0, 3.0, 50.0, 900.0) for y in (2.0, 5.0, 8.0) if (x, y) != (50.0, 5.0)]
    x, y = np.array(rows).T
    grid = build_grid((x, np.full(x.size, 7.0), y), np.sqrt(x) / y)
    sizes = [(a, b, c) for a in (0.5, 1.0, 2.0, 49.0, 50.0, 901.0) for b in (7.0, 9.0) for c in (2.0, 4.0, 5.0, 8.5)]
    ratio, basis = grid.at(*np.array(sizes).T)
    assert [(float(r), int(b)) for r, b in zip(ratio, basis, strict=True)] == [
        (float(r), int(b)) for r, b in (grid.at(*size) for size in sizes)
    ]
