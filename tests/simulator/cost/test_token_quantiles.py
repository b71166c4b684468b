"""Quantiles of the tokens of several samples, against sums that are drawn."""

import functools

import numpy as np
import pytest

from profiles.records import Floats
from profiles.workload import LengthDistribution, Workload
from simulator.cost.token_quantiles import ALWAYS, EXACT, TYPICAL, tokens_at

LONG_TAIL = LengthDistribution("lognormal", 900.0, 4096)
TWO_LENGTHS = LengthDistribution.histogram((100, 4000), (9.0, 1.0))


def _work(response: LengthDistribution) -> Workload:
    return Workload(64, 8, 512, response)


@functools.cache
def _drawn(response: LengthDistribution, num: int) -> Floats:
    """20,000 sums of so many samples, in order."""
    return np.sort(response.quantile(np.random.default_rng(0).random((20_000, num))).sum(axis=1)) + 512 * num


@pytest.mark.parametrize("response", [LONG_TAIL, TWO_LENGTHS])
@pytest.mark.parametrize("num", [2, 8, EXACT, EXACT + 8, 200])
@pytest.mark.parametrize("level", [0.5, TYPICAL, 0.99])
def test_against_drawn_sums(response: LengthDistribution, num: int, level: float) -> None:
    """Within 2 % of the quantile of 20,000 sums, either side of the change to the approximation."""
    drawn = _drawn(response, num)
    found = float(tokens_at(_work(response), np.asarray(float(num)), level))
    assert np.mean(drawn <= found * 1.02) >= level - 0.01
    assert np.mean(drawn < found * 0.98) <= level + 0.01


def test_one_sample_is_the_distribution_itself() -> None:
    found = float(tokens_at(_work(LONG_TAIL), np.asarray(1.0), TYPICAL))
    assert found == pytest.approx(512 + float(LONG_TAIL.quantile(np.asarray(TYPICAL))))


def test_fixed_lengths_and_the_worst_are_all_at_the_longest() -> None:
    nums = np.asarray([1.0, 2.5, 40.0])
    assert tokens_at(_work(LengthDistribution.fixed(1024)), nums, TYPICAL) == pytest.approx(nums * 1536)
    assert tokens_at(_work(LONG_TAIL), nums, ALWAYS) == pytest.approx(nums * 4608)


def test_more_samples_and_higher_levels_have_more_tokens_and_less_for_each() -> None:
    nums = np.arange(1.0, 80.0)
    typical = tokens_at(_work(LONG_TAIL), nums, TYPICAL)
    assert np.all(np.diff(typical) > 0)
    assert np.all(tokens_at(_work(LONG_TAIL), nums, 0.99) >= typical)
    assert np.all(np.diff(typical / nums)[[0, 1, 4, 9, 20, 50]] < 0)
