"""Protects the options of a loss that verl's users know, each against a number made by hand."""

import math

import pytest
import torch
from tensordict import TensorDict

from executor.rl.algorithms import RUNNABLE
from executor.rl.estimators import Estimation
from executor.rl.hyperparameters import Hyperparameters
from executor.rl.kl import FixedKl
from executor.rl.loss_terms import policy_loss_terms
from executor.rl.losses import clipped_policy, kl_penalty
from executor.rl.mismatch import importance, mismatch

ONE = torch.ones(1, 1, dtype=torch.bool)


@pytest.mark.parametrize(("advantage", "loss"), [(-1.0, 3.0), (-2.0, 6.0), (1.0, -1.2)])
def test_dual_clip_bounds_what_an_unlikely_bad_token_costs(advantage, loss):
    """The ratio is 10: without the second bound a bad token costs ten times its advantage."""
    given = (torch.full((1, 1), math.log(10.0)), torch.zeros(1, 1), torch.full((1, 1), advantage), ONE, 0.2)
    assert clipped_policy(*given, dual_clip=3.0)["loss"].item() == pytest.approx(loss)
    assert clipped_policy(*given)["loss"].item() == pytest.approx(-1.2 if advantage > 0 else -10 * advantage)


@pytest.mark.parametrize(("kind", "near", "far"), [("k1", -1.0, -12.0), ("k2", 0.5, 72.0), ("k3", math.e - 2, 10.0)])
def test_kl_terms_and_their_clamp(kind, near, far):
    """One token that the reference likes e times as much, and one e^12 times: k3 of that is 162,742 without it."""
    for log_prob, expected in ((-1.0, near), (-12.0, far)):
        found = kl_penalty(torch.full((1, 1), log_prob), torch.zeros(1, 1), ONE, 0.5, kind=kind, clamp=10.0)
        assert found["reference_kl"].item() == pytest.approx(expected, rel=1e-5)
        assert found["loss"].item() == pytest.approx(0.5 * expected, rel=1e-5)


def rows():
    """Two responses of 1 and 3 tokens, of four at most, whose tokens all lose 1 and 2."""
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    one = torch.ones(2, 1, dtype=torch.int64)
    return TensorDict(
        {
            "prompts": one,
            "prompt_mask": one.bool(),
            "responses": mask.long(),
            "response_mask": mask,
            "advantages": torch.tensor([[-1.0], [-2.0]]) * mask,
            "log_probs": torch.zeros(2, 4),
        },
        batch_size=[2],
    )


@pytest.mark.parametrize(
    ("aggregation", "mean"),
    [
        ("token-mean", 7 / 4),
        ("seq-mean-token-sum", (1 + 6) / 2),
        ("seq-mean-token-mean", (1 + 2) / 2),
        ("seq-mean-token-sum-norm", (1 + 6) / 2 / 4),
    ],
)
def test_losses_are_aggregated_by_tokens_or_by_sequences(aggregation, mean):
    (term,) = policy_loss_terms(rows(), RUNNABLE["grpo"], Hyperparameters(loss_aggregation=aggregation))
    outputs = {"log_probs": torch.zeros(2, 4), "entropy": torch.zeros(2, 4)}
    tokens, divisor = term.counts().tolist()
    assert tokens == 4
    assert term.loss(outputs, term.rows)["loss"].item() / divisor == pytest.approx(mean)


def test_dr_grpo_does_not_divide_by_the_deviation():
    batch = TensorDict(
        {
            "scores": torch.tensor([1.0, 0.0]),
            "group": torch.zeros(2, dtype=torch.long),
            "response_mask": ONE.expand(2, 1),
        },
        batch_size=[2],
    )
    how = Estimation(1.0, 1.0, FixedKl(0.0), scale_advantages=False)
    assert RUNNABLE["grpo"].estimate(batch, how)["advantages"].flatten().tolist() == [0.5, -0.5]


def test_defaults_of_verl_are_taken_for_what_is_not_given():
    found = Hyperparameters(defaults="verl", clip=0.1)
    assert (found.lam, found.value_clip, found.kl_coefficient, found.dual_clip, found.clip) == (1.0, 0.5, 0.0, 3.0, 0.1)
    assert Hyperparameters().dual_clip is None
    assert (found.advantage_eps, Hyperparameters().advantage_eps) == (1e-6, 1e-4)


OLD = torch.tensor([[2.0, 3.0, 0.25], [0.5, 0.5, 7.0]]).log()
"""Log-probs of the trainer where the engine's are 0; the last token does not count."""
SEEN = torch.tensor([[True, True, True], [True, True, False]])


@pytest.mark.parametrize(
    ("level", "weights"),
    [("token", [[2.0, 2.5, 0.25], [0.5, 0.5, 0.0]]), ("sequence", [[1.5, 1.5, 1.5], [0.25, 0.25, 0.0]])],
)
def test_importance_weights_are_truncated(level, weights):
    found = importance(OLD, torch.zeros(2, 3), SEEN, level, 2.5)
    assert found.tolist() == [pytest.approx(row) for row in weights]


def test_the_mismatch_of_engine_and_trainer_is_logged():
    log2, log3 = math.log(2), math.log(3)
    found = mismatch(OLD - 10, torch.full((2, 3), -10.0), SEEN)
    sums = [log2 + log3 - 2 * log2, -2 * log2]
    assert found["kl"] == pytest.approx(-sum(sums) / 5, rel=1e-4)
    assert found["k3_kl"] == pytest.approx((2 + 3 + 0.25 + 0.5 + 0.5 - 5 - sum(sums)) / 5, rel=1e-4)
    assert found["log_ppl_diff"] == pytest.approx(-(sums[0] / 3 + sums[1] / 2) / 2, rel=1e-4)
    assert found["probs_diff_max"] == pytest.approx(2 * math.exp(-10), rel=1e-4)
    assert found["probs_diff_mean"] == pytest.approx((1 + 2 + 0.75 + 0.5 + 0.5) / 5 * math.exp(-10), rel=1e-4)


def test_importance_weighs_the_policy_loss_alone():
    """Tokens that the trainer finds half as likely as the engine count half; entropy counts as before."""
    batch = rows()
    batch["rollout_log_probs"] = torch.full((2, 4), math.log(2.0))
    outputs = {"log_probs": torch.zeros(2, 4), "entropy": torch.ones(2, 4)}
    for level, expected in (("none", 7.0 - 4), ("token", 3.5 - 4), ("sequence", 0.5 + 6 / 8 - 4)):
        hyper = Hyperparameters(importance=level, entropy_coefficient=1.0)
        (term,) = policy_loss_terms(batch, RUNNABLE["grpo"], hyper)
        assert term.loss(outputs, term.rows)["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_the_kl_counts_in_the_loss_or_off_the_reward():
    batch = rows()
    batch["ref_log_probs"] = torch.full((2, 4), -1.0)  # k1 is 1 a token, k3 1/e
    batch["scores"], batch["group"] = torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.long)
    outputs = {"log_probs": torch.zeros(2, 4), "entropy": torch.zeros(2, 4)}
    for algorithm, asked, in_loss in (("grpo", None, 1), ("grpo", "reward", 0), ("ppo", None, 0), ("ppo", "loss", 1)):
        hyper = Hyperparameters(kl_in=asked, kl_coefficient=0.5)
        (term,) = policy_loss_terms(batch, RUNNABLE[algorithm], hyper)
        kl = 4 * 0.5 / math.e if in_loss else 0.0
        assert term.loss(outputs, term.rows)["loss"].item() == pytest.approx(7.0 + kl), (algorithm, asked)
    how = Estimation(1.0, 1.0, FixedKl(0.5), scale_advantages=False)
    found = RUNNABLE["grpo"].estimate(batch, how)["advantages"]
    assert found.amax(1).tolist() == [0.0, pytest.approx(0.0)]  # 1 - 0.5 and 2 - 1.5, less their mean
    assert found.amin(1).tolist() == [0.0, pytest.approx(0.0)]
