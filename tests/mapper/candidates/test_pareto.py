"""Protects safe pruning: exactly the rows that no other row dominates stay, whatever the columns' magnitudes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mapper.candidates import pareto
from mapper.candidates.pareto import non_dominated, non_dominated_by_group
from tests.draws import draws


def naive(values: np.ndarray) -> list[int]:
    """Row by row: dominated if another is at least as good everywhere and better somewhere, or equal and earlier."""
    kept = []
    for i, row in enumerate(values):
        beaten = any(
            np.all(other <= row) and (np.any(other < row) or j < i) for j, other in enumerate(values) if j != i
        )
        if not beaten:
            kept.append(i)
    return kept


small = st.integers(0, 4).map(float)
shapes = st.tuples(st.integers(1, 14), st.integers(1, 4))


@settings(max_examples=draws(200))
@given(arrays(np.float64, shapes, elements=small))
def test_equals_the_naive_definition(values: np.ndarray) -> None:
    assert non_dominated(values).tolist() == naive(values)


@settings(max_examples=draws(100))
@given(arrays(np.float64, shapes, elements=small), st.lists(st.sampled_from([1e-9, 1.0, 1e12]), min_size=4, max_size=4))
def test_seconds_beside_bytes_do_not_confuse_it(values: np.ndarray, scale: list[float]) -> None:
    values = values * np.asarray(scale[: values.shape[1]])
    assert non_dominated(values).tolist() == naive(values)


@pytest.mark.parametrize(("block", "many"), [(1, 2_000), (2, 0), (5, 2_000)])
@settings(max_examples=draws(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=arrays(np.float64, shapes, elements=small))
def test_in_blocks_of_any_size_and_by_ranks_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, block: int, many: int, values: np.ndarray
) -> None:
    monkeypatch.setattr(pareto, "BLOCK", block)
    monkeypatch.setattr(pareto, "MANY", many)
    assert non_dominated(values).tolist() == naive(values)


def test_many_rows_equal_the_naive_definition() -> None:
    values = np.random.default_rng(0).integers(0, 12, (400, 4)).astype(float)
    assert non_dominated(values).tolist() == naive(values)


def test_a_row_whose_sum_rounds_to_that_of_its_better_is_dropped() -> None:
    assert non_dominated(np.asarray([[80e9, 2e-9], [80e9, 1e-9]])).tolist() == [1]


def test_of_equal_rows_the_first_stays() -> None:
    assert non_dominated(np.asarray([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])).tolist() == [0, 1]


def test_no_rows() -> None:
    assert non_dominated(np.zeros((0, 3))).tolist() == []


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 6)), max_size=40),
    st.integers(-3, 3),
)
def test_two_columns_at_once_are_the_groups_one_by_one(rows: list[tuple[int, int, int]], shift: int) -> None:
    key = np.asarray([row[0] for row in rows], dtype=np.int64) * 10**9 + shift
    values = np.asarray([row[1:] for row in rows], dtype=np.float64).reshape(-1, 2) * 0.1
    alone = [np.flatnonzero(key == k)[non_dominated(values[key == k])] for k in np.unique(key)]
    wanted = np.sort(np.concatenate(alone)) if alone else np.zeros(0, dtype=np.int64)
    assert non_dominated_by_group(key, values).tolist() == wanted.tolist()
