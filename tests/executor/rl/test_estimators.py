"""Protects ``compute_advantage``: each algorithm's columns from the parts that are tested one by one elsewhere."""

from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict

from executor.rl.advantages import gae
from executor.rl.algorithms import RUNNABLE
from executor.rl.estimators import Estimation, mean_kl
from executor.rl.kl import FixedKl
from executor.rl.lagrangian import LagrangeMultiplier

HOW = Estimation(1.0, 0.9, FixedKl(0.5), LagrangeMultiplier(1.0, 0.0, 0.1))


@pytest.fixture
def batch():
    return TensorDict(
        {
            "scores": torch.tensor([1.0, 0.0, 2.0, 4.0]),
            "greedy_scores": torch.tensor([1.0, 1.0, 0.0, 0.0]),
            "costs": torch.tensor([1.0, 0.0, 0.0, 1.0]),
            "group": torch.tensor([0, 0, 1, 1]),
            "log_probs": torch.full((4, 2), -1.0),
            "ref_log_probs": torch.full((4, 2), -1.5),
            "values": torch.zeros(4, 2),
            "response_mask": torch.tensor([[True, True], [True, False], [True, True], [True, True]]),
        },
        batch_size=[4],
    )


def test_ppo_is_gae_on_penalised_scores_normalised(batch):
    mask = batch["response_mask"]
    rewards = torch.tensor([[-0.25, 0.75], [-0.25, 0.0], [-0.25, 1.75], [-0.25, 3.75]])
    advantages, returns = gae(rewards, torch.zeros(4, 2), mask, 1.0, 0.9)
    found = RUNNABLE["ppo"].estimate(batch, HOW)
    assert torch.allclose(found["returns"], returns)
    inside = advantages[mask]
    expected = (inside - inside.mean()) / inside.std()
    assert torch.allclose(found["advantages"][mask], expected, atol=1e-6)


def test_safe_rlhf_trains_on_reward_less_cost(batch):
    combined = batch.clone()
    combined["scores"] = (batch["scores"] - batch["costs"]) / 2
    assert torch.equal(
        RUNNABLE["safe-rlhf"].estimate(batch, HOW)["returns"], RUNNABLE["ppo"].estimate(combined, HOW)["returns"]
    )


def test_remax_compares_with_the_greedy_response(batch):
    found = RUNNABLE["remax"].estimate(batch, HOW)["advantages"]
    assert torch.allclose(found, torch.tensor([[-0.5, -0.25], [-1.25, 0.0], [1.5, 1.75], [3.5, 3.75]]))


def test_grpo_compares_within_the_prompt(batch):
    found = RUNNABLE["grpo"].estimate(batch, HOW)["advantages"]
    half = 2**-0.5
    expected = torch.tensor([[half, half], [-half, 0.0], [-half, -half], [half, half]])
    assert torch.allclose(found, expected, atol=5e-4)


def test_rloo_compares_with_the_others_of_the_prompt_and_charges_kl_once(batch):
    found = RUNNABLE["rloo"].estimate(batch, HOW)["advantages"]
    rewards = [1.0 - 0.5, 0.0 - 0.25, 2.0 - 0.5, 4.0 - 0.5]  # half of the KL, which is a half per token
    up, down = rewards[0] - rewards[1], rewards[2] - rewards[3]
    assert torch.allclose(found, torch.tensor([[up, up], [-up, 0.0], [down, down], [-down, -down]]))


def test_reinforce_plus_plus_normalises_returns_over_the_batch(batch):
    mask = batch["response_mask"]
    returns = torch.tensor([[0.5, 0.75], [-0.25, 0.0], [1.5, 1.75], [3.5, 3.75]])
    found = RUNNABLE["reinforce++"].estimate(batch, HOW)
    assert torch.allclose(found["returns"], returns)
    inside = returns[mask]
    expected = (inside - inside.mean()) / inside.std()
    assert torch.allclose(found["advantages"][mask], expected, atol=1e-6)


def test_dapo_is_grpo_on_scores_less_what_long_responses_cost(batch):
    plain = RUNNABLE["dapo"].estimate(batch, HOW)["advantages"]
    assert torch.equal(plain, RUNNABLE["grpo"].estimate(batch, HOW)["advantages"])
    shorter = batch.clone()
    shorter["scores"] = torch.tensor([0.0, 0.0, 2.0, 2.0])  # alike but for their length: two tokens, one, two, two
    how = replace(HOW, max_tokens=2, overlong_buffer=1)
    punished = RUNNABLE["dapo"].estimate(shorter, how)["advantages"]
    assert punished[0, 0] < 0 < punished[1, 0]
    assert punished[2:].abs().max() == 0


def test_mean_kl_is_per_response(batch):
    assert mean_kl(batch) == pytest.approx((1.0 + 0.5 + 1.0 + 1.0) / 4)
    assert mean_kl(batch.exclude("ref_log_probs")) == 0.0
