"""Protects the confidence interval: it holds the true median as often as it says, and outliers do not move it."""

import numpy as np
import pytest

from executor.profiling.statistics import TRIES, least_disturbed, rank_below, summarise, while_calm


@pytest.mark.parametrize(("num", "below"), [(1, 0), (5, 0), (6, 0), (9, 1), (20, 5), (100, 39)])
def test_ranks_are_those_of_the_sign_test(num: int, below: int) -> None:
    assert rank_below(num) == below  # tables of the binomial distribution, two-sided 5 %


def test_the_interval_holds_the_median_nineteen_times_in_twenty() -> None:
    random = np.random.default_rng(0)
    true = float(np.exp(0.3))  # median of a log-normal
    held = [s.low_s <= true <= s.high_s for s in (summarise(random.lognormal(0.3, 1.0, 25)) for _ in range(2000))]
    assert 0.94 <= np.mean(held) <= 0.985


def test_an_outlier_is_counted_and_does_not_count() -> None:
    quiet = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.005, 0.995, 1.015]
    found = summarise([*quiet, 50.0])
    assert found.outliers == 1 and found.median_s == pytest.approx(1.0, abs=0.01)
    assert summarise(quiet).outliers == 0


def test_no_timing_is_no_summary() -> None:
    with pytest.raises(ValueError, match="no timings"):
        summarise([])


def test_of_rounds_at_different_times_the_fastest_counts() -> None:
    rounds = [summarise(times) for times in ([3.0, 3.1, 9.0], [2.0, 2.1, 2.2], [2.5])]
    assert least_disturbed(rounds) == rounds[1]


def test_what_counts_is_measured_between_two_looks_at_a_calm_core() -> None:
    """The first measurement begins on a slowed core."""
    made = iter([summarise([float(seconds)]) for seconds in (0.5, 1.0, 9.0)])
    looks = iter([False, True, True])
    assert while_calm(lambda: next(made), lambda: next(looks)).median_s == 1.0


def test_where_a_core_never_is_calm_the_fastest_has_to_do() -> None:
    made = iter([summarise([float(seconds)]) for seconds in range(9, 9 - TRIES, -1)])
    assert while_calm(lambda: next(made), lambda: False).median_s == 10 - TRIES
