"""Protects losses against loops over single tokens, and their gradients against what the papers derive."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.rl import losses
from executor.rl.lagrangian import LagrangeMultiplier

finite = st.floats(-2, 2, allow_nan=False, width=32)
tokens = st.lists(st.tuples(finite, finite, finite, st.booleans()), min_size=1, max_size=8)


def columns(rows):
    a, b, c, mask = zip(*rows, strict=True)
    return [torch.tensor([column], dtype=torch.float64) for column in (a, b, c)] + [torch.tensor([mask])]


@given(rows=tokens)
def test_clipped_policy_token_by_token(rows):
    new, old, advantages, mask = columns(rows)
    found = losses.clipped_policy(new, old, advantages, mask, 0.2)
    expected, clipped = 0.0, 0
    for log_prob, old_log_prob, advantage, counts in rows:
        if counts:
            ratio = math.exp(log_prob - old_log_prob)
            bounded = min(max(ratio, 0.8), 1.2)
            expected -= min(ratio * advantage, bounded * advantage)
            clipped += bounded * advantage < ratio * advantage
    assert float(found["loss"]) == pytest.approx(expected, abs=1e-9)
    assert float(found["clip_fraction"]) == clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.0, 1.0, True), (1.5, 1.0, False), (1.5, -1.0, True), (0.5, -1.0, False), (0.5, 1.0, True)],
)
def test_the_gradient_stops_only_where_clipping_is_pessimistic(ratio, advantage, moves):
    log_prob = torch.tensor([[math.log(ratio)]], requires_grad=True)
    one = torch.ones(1, 1)
    losses.clipped_policy(log_prob, torch.zeros(1, 1), advantage * one, one.bool(), 0.2)["loss"].backward()
    assert float(log_prob.grad) == pytest.approx(-ratio * advantage if moves else 0.0)


def test_probabilities_may_grow_further_with_a_bound_of_their_own():
    one = torch.ones(1, 1)
    for ratio, advantage, moves in [(1.25, 1.0, True), (1.35, 1.0, False), (0.75, -1.0, False), (0.85, -1.0, True)]:
        log_prob = torch.tensor([[math.log(ratio)]], requires_grad=True)
        losses.clipped_policy(log_prob, 0 * one, advantage * one, one.bool(), 0.2, 0.3)["loss"].backward()
        assert float(log_prob.grad) == pytest.approx(-ratio * advantage if moves else 0.0)


def test_reinforce_has_the_gradient_of_the_expected_reward():
    """Exact policy gradient of a softmax policy over three actions, summed over all actions by their probability."""
    logits = torch.tensor([0.1, -0.4, 0.3], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([1.0, 5.0, -2.0], dtype=torch.float64)
    (logits.softmax(0) * rewards).sum().backward()
    exact, logits.grad = logits.grad.clone(), None
    log_probs, probs = logits.log_softmax(0), logits.softmax(0).detach()
    baseline = 0.7  # any baseline leaves the expectation alone
    loss = losses.reinforce(log_probs[None], (probs * (rewards - baseline))[None], torch.ones(1, 3, dtype=torch.bool))
    loss["loss"].backward()
    assert torch.allclose(-logits.grad, exact)


@given(rows=tokens)
def test_clipped_value_token_by_token(rows):
    values, old, returns, mask = columns(rows)
    expected = {None: 0.0, 0.2: 0.0}
    for value, old_value, target, counts in rows:
        if counts:
            near = old_value + min(max(value - old_value, -0.2), 0.2)
            expected[None] += 0.5 * (value - target) ** 2
            expected[0.2] += 0.5 * max((value - target) ** 2, (near - target) ** 2)
    for clip, loss in expected.items():
        assert float(losses.clipped_value(values, old, returns, mask, clip)["loss"]) == pytest.approx(loss, abs=1e-9)


def test_kl_penalty_pulls_the_policy_towards_the_reference():
    log_prob = torch.tensor([[-1.0]], requires_grad=True)
    losses.kl_penalty(log_prob, torch.tensor([[-2.0]]), torch.ones(1, 1, dtype=torch.bool), 0.5)["loss"].backward()
    assert float(log_prob.grad) == pytest.approx(0.5 * (1 - math.exp(-1.0)))  # d/dx (e^{r-x} - (r-x) - 1)


def test_entropy_pretrain_and_sums_by_name():
    mask = torch.tensor([[True, False]])
    entropy = losses.entropy_bonus(torch.tensor([[2.0, 9.0]]), mask, 0.1)
    text = losses.pretrain(torch.tensor([[-3.0, -9.0]]), mask)
    total = losses.added(entropy, text)
    assert float(total["loss"]) == pytest.approx(3.0 - 0.2)
    assert float(total["entropy"]) == 2.0


def test_the_multiplier_follows_the_cost_and_settles_where_it_is_at_its_limit():
    start = LagrangeMultiplier(1.0, limit=0.5, learning_rate=0.1)
    assert start.updated(1.5).value == pytest.approx(math.exp(0.1))
    assert start.updated(0.5).value == pytest.approx(1.0)
    assert start.updated(1e9).value == pytest.approx(100.0)
    assert start.updated(-1e9).value == pytest.approx(1e-4)
    multiplier = start
    for _ in range(500):  # a plant whose cost falls as the multiplier rises
        multiplier = multiplier.updated(1.0 / (1.0 + multiplier.value**2))
    assert 1.0 / (1.0 + multiplier.value**2) == pytest.approx(0.5, abs=1e-3)


def test_reward_and_cost_combine_to_a_bounded_signal():
    combined = LagrangeMultiplier(3.0, 0.0, 0.1).combined(torch.tensor([1.0]), torch.tensor([2.0]))
    assert combined.tolist() == [(1.0 - 6.0) / 4.0]
