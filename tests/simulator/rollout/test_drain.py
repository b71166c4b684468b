"""Protects continuous batching: the closed-form profile of a replica against a simulation that decodes step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.workload import LengthDistribution
from simulator.rollout import drain
from simulator.rollout.drain import RolloutProfile, rollout_profile


def lengths_in_arrival_order(num: int, response: LengthDistribution, total: int) -> list[int]:
    """The documented rule: even quantiles, the longest from the whole job's quantiles, in the fixed random order."""
    lengths = [int(np.ceil(x)) for x in response.sample(num)]
    lengths[-1] = int(np.ceil(response.quantile(np.asarray([1 - 0.5 / total]))[0]))
    return [lengths[i] for i in np.random.default_rng(0).permutation(num)]


def decode(lengths: list[int], slots: int, prompt: float) -> tuple[list[int], list[float], float]:
    """Active sequences and mid-step tokens of every step, and the most tokens at the end of a step."""
    waiting, running = list(lengths), []
    active, tokens, peak = [], [], 0.0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append((waiting.pop(0), 0))
        active.append(len(running))
        tokens.append(sum(prompt + done + 0.5 for _, done in running))
        running = [(length, done + 1) for length, done in running]
        peak = max(peak, sum(prompt + done for _, done in running))
        running = [(length, done) for length, done in running if done < length]
    return active, tokens, peak


def integral(values: list[float], at: np.ndarray) -> np.ndarray:
    """Sum over steps up to (fractional) step ``at``."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.interp(at, np.arange(len(total)), total)


histograms = st.builds(
    lambda pairs: LengthDistribution.histogram(tuple(p[0] for p in pairs), tuple(float(p[1]) for p in pairs)),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=5, unique_by=lambda p: p[0]),
)


@settings(max_examples=120)
@given(
    num=st.integers(1, 40),
    slots=st.integers(1, 12),
    prompt=st.integers(1, 50),
    response=histograms,
    replicas=st.integers(1, 4),
)
def test_equals_a_step_by_step_simulation(
    num: int, slots: int, prompt: int, response: LengthDistribution, replicas: int
) -> None:
    profile = rollout_profile(num, slots, float(prompt), response, num * replicas)
    lengths = lengths_in_arrival_order(num, response, num * replicas)
    active, tokens, peak = decode(lengths, slots, float(prompt))
    assert profile.steps.sum() == pytest.approx(len(active))
    assert float((profile.steps * profile.active).sum()) == pytest.approx(sum(lengths)), "every token is decoded once"
    assert profile.peak_tokens == pytest.approx(peak)
    assert np.all(profile.active <= min(slots, num) + 1e-9)
    edges = np.concatenate([[0.0], np.cumsum(profile.steps)])
    assert profile.steps * profile.active == pytest.approx(np.diff(integral([float(a) for a in active], edges)))
    held = profile.steps * profile.active * profile.context
    assert float(held.sum()) == pytest.approx(sum(tokens))
    # Inside a step context grows along a line; at a cut between steps that is at most 1/8 token per sequence off.
    assert held == pytest.approx(np.diff(integral(tokens, edges)), abs=min(slots, num) / 4)


@settings(max_examples=40)
@given(num=st.integers(1, 300), slots=st.integers(1, 64), length=st.integers(4, 500), prompt=st.integers(1, 500))
def test_equal_lengths_run_in_waves(num: int, slots: int, length: int, prompt: int) -> None:
    profile = rollout_profile(num, slots, float(prompt), LengthDistribution.fixed(length), num)
    active, tokens, peak = decode([length] * num, slots, float(prompt))
    assert profile.steps.sum() == pytest.approx(len(active)) == -(-num // min(slots, num)) * length
    assert float((profile.steps * profile.active).sum()) == pytest.approx(num * length)
    assert float((profile.steps * profile.active * profile.context).sum()) == pytest.approx(sum(tokens))
    assert profile.peak_tokens == peak == min(slots, num) * (prompt + length)


def test_one_sequence_at_a_time_by_hand() -> None:
    profile = rollout_profile(2, 1, 10.0, LengthDistribution.histogram((2, 4), (1.0, 1.0)), 2)
    assert profile.steps.sum() == 6
    assert profile.active == pytest.approx(np.ones(len(profile.active)))
    assert profile.peak_tokens == 14


LONG_TAIL = LengthDistribution("lognormal", 900.0, 8192)


def total(profile: RolloutProfile) -> float:
    return float((profile.steps * profile.active).sum())


def test_a_larger_replica_than_is_worked_out_is_scaled() -> None:
    num = 4 * drain.MAX_SEQUENCES
    profile = rollout_profile(num, 256, 100.0, LONG_TAIL, num)
    assert total(profile) == pytest.approx(num * 900, rel=0.02)
    small = rollout_profile(drain.MAX_SEQUENCES, 64, 100.0, LONG_TAIL, num)
    assert profile.steps == pytest.approx(small.steps)
    assert profile.active == pytest.approx(4 * small.active)
    assert profile.peak_tokens == pytest.approx(4 * small.peak_tokens)


def test_the_slowest_replica_draws_the_longest_response_of_the_job() -> None:
    """With a slot for everyone the stage lasts as long as the longest response."""
    alone = rollout_profile(8, 8, 100.0, LONG_TAIL, 8)
    among_many = rollout_profile(8, 8, 100.0, LONG_TAIL, 4096)
    assert among_many.steps.sum() > alone.steps.sum()
    assert among_many.steps.sum() == np.ceil(LONG_TAIL.quantile(np.asarray([1 - 0.5 / 4096]))[0])


def test_fewer_slots_never_take_fewer_steps() -> None:
    steps = [rollout_profile(64, slots, 100.0, LONG_TAIL, 64).steps.sum() for slots in (64, 32, 16, 8, 4, 2, 1)]
    assert steps == sorted(steps)
