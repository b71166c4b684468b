"""Protects continuous batching in a small cache: nothing is lost, nothing exceeds the cache, waiting costs steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InfeasibleError
from profiles.workload import LengthDistribution
from simulator.rollout.drain import arrival_lengths, rollout_profile
from simulator.rollout.limited_cache import limited_profile

LENGTHS = LengthDistribution("lognormal", 400.0, 4096)


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    slots=st.integers(1, 10),
    prompt=st.integers(1, 30),
    spare=st.integers(0, 200),
)
def test_every_token_is_decoded_once_inside_the_cache(lengths: list[int], slots: int, prompt: int, spare: int) -> None:
    kv = max(lengths) + prompt + spare
    profile = limited_profile(np.asarray(lengths, dtype=np.float64), slots, float(prompt), float(kv))
    assert (profile.steps * profile.active).sum() == pytest.approx(sum(lengths))
    assert profile.peak_tokens <= kv
    assert profile.active.max() <= slots + 1e-9
    assert profile.steps.sum() >= max(sum(lengths) / slots, max(lengths)) - 1e-9


def test_a_large_cache_changes_nothing() -> None:
    free = rollout_profile(64, 16, 100.0, LENGTHS, 64)
    limited = limited_profile(arrival_lengths(64, LENGTHS, 64), 16, 100.0, 1e9)
    assert limited.steps.sum() == pytest.approx(free.steps.sum(), rel=1e-9)
    assert limited.recomputed_tokens == 0.0
    tokens = [(p.steps * p.active * p.context).sum() for p in (free, limited)]
    assert tokens[1] == pytest.approx(tokens[0], rel=1e-6)


def test_a_smaller_cache_takes_more_steps_and_computes_again() -> None:
    lengths = arrival_lengths(256, LENGTHS, 256)
    profiles = [limited_profile(lengths, 256, 100.0, kv) for kv in (1e9, 80_000.0, 40_000.0, 20_000.0)]
    steps = [p.steps.sum() for p in profiles]
    assert steps == sorted(steps)
    assert steps[-1] > 1.3 * steps[0]
    assert profiles[0].recomputed_tokens == 0.0 < profiles[-1].recomputed_tokens


def test_chunks_of_steps_stand_for_single_ones() -> None:
    lengths = arrival_lengths(128, LENGTHS, 128)
    coarse, fine = (limited_profile(lengths, 128, 100.0, 30_000.0, chunk) for chunk in (16, 1))
    assert coarse.steps.sum() == pytest.approx(fine.steps.sum(), rel=0.01)


def test_a_sequence_that_never_fits_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="holds 100 tokens, one sequence needs 110"):
        limited_profile(np.asarray([60.0, 10.0]), 4, 50.0, 100.0)
