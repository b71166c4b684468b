"""Protects the work of an iteration: counts by hand, and length distributions with the stated mean and limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.workload import DEFAULT_LOGNORMAL_SIGMA, LengthDistribution, Workload
from tests.builders import workload


def test_counts_of_the_papers_run() -> None:
    work = workload()
    assert (work.num_samples, work.minibatch_samples, work.padded_length) == (1024, 128, 2048)
    assert work.tokens == 2_097_152
    assert work.trained_tokens_per_sample == 2048
    assert work.engine_prompt_tokens == 1024


def test_several_samples_per_prompt_and_stripped_prompts() -> None:
    work = workload(64, 512, 1024, samples_per_prompt=8, minibatches=4, prompt_tokens=100.0)
    assert (work.num_samples, work.minibatch_samples) == (512, 128)
    assert work.tokens == 512 * 1124
    assert replace(work, pads_prompts=True).tokens == 512 * 1536  # what training works through
    assert work.engine_prompt_tokens == 100.0


def test_a_histogram_is_sorted_normalised_and_exact() -> None:
    lengths = LengthDistribution.histogram((30, 10, 20), (1.0, 2.0, 1.0))
    assert lengths.lengths == (10, 20, 30)
    assert lengths.weights == (0.5, 0.25, 0.25)
    assert lengths.mean == 17.5
    assert lengths.maximum == 30
    assert lengths.quantile(np.asarray([0.0, 0.5, 0.51, 0.75, 0.76, 1.0])).tolist() == [10, 10, 20, 20, 30, 30]
    assert lengths.sample(4).tolist() == [10, 10, 20, 30]


def test_fixed_lengths() -> None:
    fixed = LengthDistribution.fixed(7)
    assert fixed.sample(3).tolist() == [7, 7, 7]
    assert (fixed.mean, fixed.maximum) == (7.0, 7)


@settings(max_examples=40)
@given(mean=st.integers(50, 5000), ratio=st.floats(1.3, 20.0), p99=st.none() | st.floats(1.5, 8.0))
def test_a_clipped_lognormal_has_the_stated_mean_and_limit(mean: int, ratio: float, p99: float | None) -> None:
    lengths = LengthDistribution("lognormal", float(mean), int(mean * ratio), None if p99 is None else mean * p99)
    sample = lengths.sample(20_000)
    assert sample.mean() == pytest.approx(mean, rel=0.02)
    assert sample.max() <= lengths.maximum
    assert sample.min() >= 1
    assert np.all(np.diff(sample) >= 0)


def test_p99_before_clipping_is_met() -> None:
    lengths = LengthDistribution("lognormal", 1000.0, 100_000, 6000.0)
    assert lengths.quantile(np.asarray([0.99]))[0] == pytest.approx(6000, rel=1e-6)


def test_the_default_spread_is_the_stated_one() -> None:
    lengths = LengthDistribution("lognormal", 1000.0, 10**9)
    median, upper = lengths.quantile(np.asarray([0.5, 0.8413447460685429]))
    assert np.log(upper / median) == pytest.approx(DEFAULT_LOGNORMAL_SIGMA)
    assert median == pytest.approx(1000 / np.exp(DEFAULT_LOGNORMAL_SIGMA**2 / 2), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthDistribution.fixed(0), "response_length must be a positive number of tokens, got 0"),
        (lambda: LengthDistribution("lognormal", 0.0, 10), "the mean must lie in"),
        (lambda: LengthDistribution("lognormal", 11.0, 10), "the mean must lie in"),
        (lambda: LengthDistribution("lognormal", 10.0, 10), "state the fixed length instead"),
        (lambda: LengthDistribution("lognormal", 5.0, 10, 4.0), "p99 .4.0. must be above the mean"),
        (lambda: LengthDistribution.histogram((1, 2), (1.0,)), "2 lengths and 1 weights"),
        (lambda: LengthDistribution.histogram((), ()), "0 lengths"),
        (lambda: LengthDistribution.histogram((0, 2), (1.0, 1.0)), "lengths must be positive"),
        (lambda: LengthDistribution.histogram((1, 2), (0.0, 0.0)), "not all zero"),
        (lambda: LengthDistribution.histogram((1, 2), (-1.0, 2.0)), "non-negative"),
    ],
)
def test_distributions_that_cannot_be_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("field", ["prompts", "samples_per_prompt", "prompt_length", "epochs", "minibatches"])
def test_counts_must_be_positive(field: str) -> None:
    given_counts = {"prompts": 8, "samples_per_prompt": 1, "prompt_length": 8, "epochs": 1, "minibatches": 1, field: 0}
    with pytest.raises(InputError, match=f"workload.{field} must be a positive whole number, got 0"):
        Workload(response=LengthDistribution.fixed(8), **given_counts)


def test_minibatches_must_divide_the_samples_and_the_error_says_which_do() -> None:
    with pytest.raises(InputError, match=r"minibatches = 7 does not divide 1024 .* nearest that do are 4 and 8"):
        workload(minibatches=7)
    with pytest.raises(InputError, match=r"minibatches = 20 does not divide 8 .* are 8 and 8"):
        workload(8, minibatches=20)


def test_other_limits() -> None:
    with pytest.raises(InputError, match="reward_s_per_sample must not be negative"):
        workload(reward_s_per_sample=-1.0)
    for tokens in (0.0, 1025.0):
        with pytest.raises(InputError, match="prompt_tokens must lie in"):
            workload(prompt_tokens=tokens)
