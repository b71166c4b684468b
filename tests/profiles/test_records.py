"""Protects provenance: seconds keep their basis through sums, products, choices and overlap, and the weakest shows."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.records import Basis, ConstantBasis, Priced, exposed, longer, where

seconds = st.lists(st.floats(0, 1e6), min_size=4, max_size=4)
bases = st.lists(st.sampled_from(list(Basis)), min_size=4, max_size=4)
prices = st.builds(Priced.of, seconds, bases)


def test_of_puts_each_time_under_its_basis() -> None:
    price = Priced.of([1.0, 2.0], [Basis.MEASURED, Basis.ANALYTIC])
    assert price.by_basis_s.tolist() == [[1, 0], [0, 0], [0, 0], [0, 0], [0, 2], [0, 0]]
    assert price.s.tolist() == [1, 2]
    assert price.weakest.tolist() == [Basis.MEASURED, Basis.ANALYTIC]
    assert price.shape == (2,)
    assert Priced.of(3.0, Basis.PUBLISHED).shape == ()


def test_zero_is_nothing_and_counts_as_measured() -> None:
    nothing = Priced.zero((2,))
    assert nothing.s.tolist() == [0, 0]
    assert nothing.weakest.tolist() == [Basis.MEASURED, Basis.MEASURED]
    assert nothing.share() == {basis.name.lower(): float(basis is Basis.MEASURED) for basis in Basis}


@given(prices, prices, st.floats(0, 100))
def test_sums_and_multiples_keep_every_basis(a: Priced, b: Priced, factor: float) -> None:
    both = a + b
    assert both.s == pytest.approx(a.s + b.s)
    assert both.by_basis_s == pytest.approx(a.by_basis_s + b.by_basis_s)
    assert np.array_equal(both.weakest, np.maximum(a.weakest, b.weakest))
    assert (a * factor).by_basis_s == pytest.approx(a.by_basis_s * factor)
    assert np.array_equal((factor * a).s, (a * factor).s)


@given(prices)
def test_shares_add_up_to_one(price: Priced) -> None:
    assert sum(price.share().values()) == pytest.approx(1.0)
    assert list(price.share()) == [b.name.lower() for b in Basis]


@given(prices, prices)
def test_the_longer_one_lends_its_provenance(a: Priced, b: Priced) -> None:
    chosen = longer(a, b)
    assert np.array_equal(chosen.s, np.maximum(a.s, b.s))
    for i in range(4):
        source = a if a.s[i] >= b.s[i] else b
        assert np.array_equal(chosen.by_basis_s[:, i], source.by_basis_s[:, i])


@settings(max_examples=200)
@given(prices, st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
def test_what_is_exposed_is_between_nothing_and_all(work: Priced, beside: list[float]) -> None:
    left = exposed(work, np.asarray(beside))
    assert np.all(left.s >= 0)
    assert np.all(left.s <= work.s * (1 + 1e-12))
    room = np.maximum(beside, 0.0)
    assert left.s == pytest.approx(np.maximum(work.s - room, 0.0), rel=1e-6, abs=1e-9)
    assert np.all(left.weakest <= work.weakest)


def test_where_chooses_elementwise() -> None:
    a, b = Priced.of([1.0, 1.0], Basis.MEASURED), Priced.of([2.0, 2.0], Basis.ANALYTIC)
    chosen = where([True, False], a, b)
    assert chosen.s.tolist() == [1, 2]
    assert chosen.weakest.tolist() == [Basis.MEASURED, Basis.ANALYTIC]


def test_element_axes_broadcast_as_in_numpy() -> None:
    row, table = Priced.of([1.0, 2.0], Basis.MEASURED), Priced.of([[10.0, 20.0], [30.0, 40.0]], Basis.ANALYTIC)
    assert (row + table).s.tolist() == [[11, 22], [31, 42]]
    assert (row * [[1.0], [2.0]]).s.tolist() == [[1, 2], [2, 4]]
    assert longer(row, table).s.tolist() == table.s.tolist()
    assert (Priced.of(5.0, Basis.MEASURED) + row).s.tolist() == [6, 7]


def test_indexing_and_sums_over_axes() -> None:
    table = Priced.of([[10.0, 20.0], [30.0, 40.0]], [[0, 1], [2, 3]])
    assert table[1].s.tolist() == [30, 40]
    assert float(table[0, 1].s) == 20
    assert table.sum(axis=0).s.tolist() == [40, 60]
    assert table.sum(axis=1).s.tolist() == [30, 70]
    assert float(table.sum().s) == 100
    assert table.sum().by_basis_s.tolist() == [10, 20, 30, 40, 0, 0]


def test_bases_are_ordered_strongest_first() -> None:
    assert list(Basis) == sorted(Basis)
    names = ["MEASURED", "PUBLISHED", "INTERPOLATED", "FITTED", "ANALYTIC", "ASSUMED"]
    assert [b.name for b in Basis] == names
    assert set(get_args(ConstantBasis)) < {name.lower() for name in names}


@given(prices, st.sampled_from(list(Basis)))
def test_a_rule_weakens_a_price_and_never_strengthens_it(price: Priced, basis: Basis) -> None:
    weaker = price.at_best(basis)
    assert weaker.s == pytest.approx(price.s)
    assert np.all(weaker.by_basis_s[:basis] == 0)
    assert np.array_equal(weaker.by_basis_s[basis + 1 :], price.by_basis_s[basis + 1 :])


def test_parts_of_different_shapes_add_up_each_on_its_basis() -> None:
    price = Priced.parts((1.0, Basis.FITTED), ([1.0, 2.0], Basis.ASSUMED), ([[3.0], [4.0]], Basis.FITTED))
    assert price.s.tolist() == [[5, 6], [6, 7]]
    assert price.by_basis_s[Basis.FITTED].tolist() == [[4, 4], [5, 5]]
    assert price.by_basis_s[Basis.ASSUMED].tolist() == [[1, 2], [1, 2]]
