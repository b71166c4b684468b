"""Protects safe pruning: exactly the rows that no other row dominates stay, whatever the columns' magnitudes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mapper.pareto import non_dominated


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


@settings(max_examples=200)
@given(arrays(np.float64, shapes, elements=small))
def test_equals_the_naive_definition(values: np.ndarray) -> None:
    assert non_dominated(values).tolist() == naive(values)


@settings(max_examples=100)
@given(arrays(np.float64, shapes, elements=small), st.lists(st.sampled_from([1e-9, 1.0, 1e12]), min_size=4, max_size=4))
def test_seconds_beside_bytes_do_not_confuse_it(values: np.ndarray, scale: list[float]) -> None:
    values = values * np.asarray(scale[: values.shape[1]])
    assert non_dominated(values).tolist() == naive(values)


def test_a_row_whose_sum_rounds_to_that_of_its_better_is_dropped() -> None:
    assert non_dominated(np.asarray([[80e9, 2e-9], [80e9, 1e-9]])).tolist() == [1]


def test_of_equal_rows_the_first_stays() -> None:
    assert non_dominated(np.asarray([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])).tolist() == [0, 1]


def test_no_rows() -> None:
    assert non_dominated(np.zeros((0, 3))).tolist() == []
