"""Protects advantages against brute force: sums written out term by term, group by group, in plain Python."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.rl.advantages import (
    gae,
    group_relative,
    leave_one_out,
    normalised,
    over_tokens,
    overlong_penalty,
    returns_to_go,
)

finite = st.floats(-3, 3, allow_nan=False, width=32)


@st.composite
def rows(draw):
    num, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    lengths = [draw(st.integers(1, width)) for _ in range(num)]
    table = lambda: torch.tensor([[draw(finite) for _ in range(width)] for _ in range(num)], dtype=torch.float64)  # noqa: E731
    mask = torch.tensor([[t < length for t in range(width)] for length in lengths])
    return table(), table(), mask, lengths


def brute_force_gae(rewards, values, length, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, with delta_t = r_t + gamma V_{t+1} - V_t and V = 0 after the end."""
    value = lambda t: values[t] if t < length else 0.0  # noqa: E731
    delta = [rewards[t] + gamma * value(t + 1) - value(t) for t in range(length)]
    return [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, length)) for t in range(length)]


@given(case=rows(), gamma=st.sampled_from([0.0, 0.9, 1.0]), lam=st.sampled_from([0.0, 0.95, 1.0]))
def test_gae_is_the_discounted_sum_of_deltas(case, gamma, lam):
    rewards, values, mask, lengths = case
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for i, length in enumerate(lengths):
        expected = brute_force_gae(rewards[i].tolist(), values[i].tolist(), length, gamma, lam)
        assert advantages[i, :length].tolist() == pytest.approx(expected, abs=1e-9)
        assert returns[i, :length].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, values[i].tolist(), strict=False)], abs=1e-9
        )
        assert advantages[i, length:].abs().sum() == returns[i, length:].abs().sum() == 0


def test_gae_with_lambda_one_is_return_minus_value_and_with_zero_the_one_step_error():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.2, 0.4]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert torch.allclose(gae(rewards, values, mask, 1.0, 1.0)[0], 1.0 - values)
    assert torch.allclose(gae(rewards, values, mask, 1.0, 0.0)[0], torch.tensor([[-0.3, 0.2, 0.6]]))


@given(case=rows())
def test_returns_to_go_add_up_what_is_left(case):
    rewards, _, mask, lengths = case
    found = returns_to_go(rewards, mask, 0.5)
    for i, length in enumerate(lengths):
        expected = [sum(0.5 ** (k - t) * float(rewards[i, k]) for k in range(t, length)) for t in range(length)]
        assert found[i, :length].tolist() == pytest.approx(expected, abs=1e-9)


@given(case=rows())
def test_normalised_has_mean_zero_and_variance_one_over_the_mask_only(case):
    x, _, mask, _ = case
    inside = x[mask].tolist()
    found = normalised(x, mask)
    assert found[~mask].abs().sum() == 0
    mean = statistics.fmean(inside)
    std = math.sqrt((statistics.variance(inside) if len(inside) > 1 else 0.0) + 1e-8)
    assert found[mask].tolist() == pytest.approx([(value - mean) / std for value in inside], abs=1e-6)


@given(scores=st.lists(finite, min_size=1, max_size=12), data=st.data())
def test_group_relative_scores_compare_within_the_prompt(scores, data):
    group = data.draw(st.lists(st.integers(0, 3), min_size=len(scores), max_size=len(scores)))
    found = group_relative(torch.tensor(scores), torch.tensor(group))
    for i, (score, mine) in enumerate(zip(scores, group, strict=True)):
        members = [s for s, g in zip(scores, group, strict=True) if g == mine]
        std = statistics.stdev(members) if len(members) > 1 else 0.0
        assert float(found[i]) == pytest.approx((score - statistics.fmean(members)) / (std + 1e-4), rel=2e-3, abs=5e-3)


def test_group_relative_without_scale_is_centred_only():
    found = group_relative(torch.tensor([1.0, 3.0, 10.0]), torch.tensor([7, 7, 8]), scale=False)
    assert found.tolist() == [-1.0, 1.0, 0.0]


def test_over_tokens_stops_at_the_mask():
    assert over_tokens(torch.tensor([2.0]), torch.tensor([[True, True, False]])).tolist() == [[2.0, 2.0, 0.0]]


@given(scores=st.lists(st.tuples(finite, st.integers(0, 2)), min_size=1, max_size=9))
def test_leave_one_out_subtracts_the_mean_of_the_others(scores):
    values, groups = zip(*scores, strict=True)
    found = leave_one_out(torch.tensor(values, dtype=torch.float32), torch.tensor(groups)).tolist()
    for i, (value, group) in enumerate(scores):
        others = [v for j, (v, g) in enumerate(scores) if g == group and j != i]
        assert found[i] == pytest.approx(value - statistics.fmean(others) if others else 0.0, abs=1e-5)


def test_overlong_responses_lose_up_to_one_in_the_last_tokens():
    lengths = torch.tensor([1, 6, 7, 8, 10, 13])
    assert overlong_penalty(lengths, 10, 4).tolist() == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert overlong_penalty(lengths, 10, 0).abs().max() == 0
