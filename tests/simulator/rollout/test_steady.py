"""Protects what engines hold that never drain: the formulas against an endless rollout that is played out."""

import numpy as np
import pytest

from profiles.workload import LengthDistribution
from simulator.rollout.steady import steady_state

PROMPT = 100.0
LONG_TAIL = LengthDistribution("lognormal", 900.0, 8192)
TWO_LENGTHS = LengthDistribution.histogram((100, 1000), (1.0, 1.0))
EVEN = LengthDistribution.histogram(tuple(range(500, 1500, 10)), (1.0,) * 100)


def held(response: LengthDistribution, slots: int, rounds: int) -> np.ndarray:
    """Tokens that ``slots`` sequences hold in every decode step, one after another; the first steps are left out."""
    lengths = np.random.default_rng(1).permutation(np.ceil(response.sample(slots * rounds))).astype(int)
    each = [
        np.concatenate([PROMPT + np.arange(1, length + 1) for length in own]) for own in lengths.reshape(slots, rounds)
    ]
    steps = min(len(tokens) for tokens in each)  # until the first slot has no sequence left
    return np.sum([tokens[steps // 3 : steps] for tokens in each], axis=0)


@pytest.mark.parametrize("response", [LONG_TAIL, TWO_LENGTHS, EVEN], ids=["long tail", "two lengths", "even"])
@pytest.mark.parametrize("slots", [8, 64])
def test_mean_and_peak_are_those_of_an_endless_rollout(response: LengthDistribution, slots: int) -> None:
    state, played = steady_state(PROMPT, response), held(response, slots, 3000 // slots + 60)
    assert slots * state.mean_context == pytest.approx(played.mean(), rel=0.05)
    peak = float(state.peak_tokens(np.asarray([slots]))[0])
    assert np.mean(played > peak) < 0.01, "what is planned for is exceeded in few steps"
    assert peak < 1.3 * played.max(), "and is not far above what is ever held"


def test_equal_lengths_stay_in_step() -> None:
    state = steady_state(512.0, LengthDistribution.fixed(256))
    assert state.peak_tokens(np.asarray([1, 1000])).tolist() == [768.0, 768_000.0]
    assert state.mean_context == 512 + 128


def test_no_more_than_all_sequences_at_their_longest() -> None:
    assert steady_state(PROMPT, LONG_TAIL).peak_tokens(np.asarray([1]))[0] <= 100 + 8192
    assert steady_state(PROMPT, TWO_LENGTHS).peak_tokens(np.asarray([1])).tolist() == [1100.0]


def test_many_sequences_need_little_more_than_their_mean() -> None:
    state, running = steady_state(PROMPT, LONG_TAIL), np.asarray([4, 64, 1024, 16384])
    over = state.peak_tokens(running) / (running * state.mean_context)
    assert np.all(np.diff(over) < 0)
    assert over[-1] == pytest.approx(1.0, abs=0.03)
