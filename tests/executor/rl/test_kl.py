"""Protects KL estimates against the closed form of categorical distributions, and the two ways to control them."""

import pytest
import torch

from executor.rl.kl import AdaptiveKl, FixedKl, kl_estimate, token_rewards

P = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
Q = torch.tensor([0.25, 0.15, 0.35, 0.25], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_estimates_have_the_exact_kl_as_expectation(kind):
    exact = (P * (P / Q).log()).sum()
    assert float((P * kl_estimate(P.log(), Q.log(), kind)).sum()) == pytest.approx(float(exact), rel=1e-12)


def test_k2_is_half_the_squared_log_ratio_and_k3_is_never_negative():
    assert float(kl_estimate(torch.tensor(0.3), torch.tensor(-0.1), "k2")) == pytest.approx(0.08)
    grid = torch.linspace(-4, 4, 81)
    assert (kl_estimate(grid, torch.zeros(81), "k3") >= 0).all()
    assert float(kl_estimate(torch.tensor(1.0), torch.tensor(1.0), "k3")) == 0.0


def test_token_rewards_charge_every_token_and_pay_the_last():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    kl = torch.tensor([[0.5, 1.0, 9.0], [1.0, 2.0, 3.0]])
    found = token_rewards(torch.tensor([10.0, 20.0]), kl, mask, 0.1)
    assert torch.allclose(found, torch.tensor([[-0.05, 9.9, 0.0], [-0.1, -0.2, 19.7]]))


def test_a_row_without_tokens_is_paid_nothing():
    found = token_rewards(torch.tensor([5.0]), torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool), 0.1)
    assert found.abs().sum() == 0


def test_control():
    assert FixedKl(0.1).updated(100.0, 10) == FixedKl(0.1)
    control = AdaptiveKl(0.1, target=6.0, horizon=1000)
    assert control.updated(6.6, 100).coefficient == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    assert control.updated(60.0, 100).coefficient == pytest.approx(0.1 * (1 + 0.2 * 0.1))  # the error is clipped
    assert control.updated(0.0, 100).coefficient == pytest.approx(0.1 * (1 - 0.2 * 0.1))
    assert control.updated(6.0, 100).coefficient == pytest.approx(0.1)


def test_adaptive_control_finds_a_coefficient_that_holds_its_target():
    """A plant whose KL falls as the coefficient rises: kl = 1 / coefficient."""
    control = AdaptiveKl(1.0, target=5.0, horizon=10)
    for _ in range(500):
        control = control.updated(1.0 / control.coefficient, 1)
    assert 1.0 / control.coefficient == pytest.approx(5.0, rel=0.01)
