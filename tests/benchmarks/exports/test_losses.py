"""Protects losses and advantages number by number against verl 0.9.1's own functions, in verl's environment."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

import benchmarks.exports
from executor.rl.algorithms import RUNNABLE
from executor.rl.estimators import Estimation
from executor.rl.hyperparameters import Hyperparameters
from executor.rl.kl import FixedKl
from executor.rl.loss_terms import loss_weights, policy_loss_terms
from executor.rl.losses import clipped_value, kl_penalty
from executor.rl.mismatch import importance, mismatch

PEERS = Path(os.environ.get("HYBRIDMAP_PEERS", Path(__file__).parents[3] / ".venv-peers"))
PYTHON = PEERS / "bin" / "python"
SCRIPT = Path(benchmarks.exports.__file__).with_name("verl_losses_check.py")
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment with verl; `make check-all` makes it"),
]


@pytest.fixture(scope="module")
def columns():
    """Six responses of one to five tokens, log-probs up to three apart, three groups."""
    random = torch.Generator().manual_seed(5)
    drawn = {
        name: torch.randn(6, 5, generator=random, dtype=torch.float64)
        for name in ("new", "old", "rollout", "reference", "advantages", "values", "returns")
    }
    lengths = torch.tensor([5, 1, 3, 4, 2, 5])
    scores = torch.tensor([1.0, 0.0, 0.5, 2.0, -1.0, 0.25], dtype=torch.float64)
    mask = torch.arange(5) < lengths[:, None]
    return {**drawn, "scores": scores, "mask": mask, "group": torch.tensor([0, 0, 1, 1, 2, 2])}


@pytest.fixture(scope="module")
def verl(columns):
    asked = json.dumps({name: column.tolist() for name, column in columns.items()})
    done = subprocess.run([str(PYTHON), "-W", "ignore", str(SCRIPT)], input=asked, capture_output=True, text=True)
    answer = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER ")), None)
    assert answer is not None, done.stderr[-2000:]
    return json.loads(answer.removeprefix("ANSWER "))


def batch_of(columns):
    given = {name: columns[name] for name in ("advantages", "scores", "group", "values")}
    mask = columns["mask"]
    return TensorDict(
        {
            **given,
            "prompts": torch.ones(6, 1, dtype=torch.int64),
            "prompt_mask": torch.ones(6, 1, dtype=torch.bool),
            "responses": mask.long(),
            "response_mask": mask,
            "log_probs": columns["old"],
            "rollout_log_probs": columns["rollout"],
        },
        batch_size=[6],
    )


@pytest.mark.parametrize("level", ["none", "token", "sequence"])
@pytest.mark.parametrize("mode", MODES)
def test_policy_losses_are_verls(columns, verl, mode, level):
    hyper = Hyperparameters(defaults="verl", clip_high=0.28, loss_aggregation=mode, importance=level)
    (term,) = policy_loss_terms(batch_of(columns), RUNNABLE["ppo"], hyper)
    found = term.loss({"log_probs": columns["new"], "entropy": torch.zeros(6, 5)}, term.rows)["loss"]
    theirs = verl["losses"][mode if level == "none" else f"{mode} {level}"]
    assert float(found / term.counts()[1]) == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("mode", MODES)
def test_kl_terms_are_verls(columns, verl, mode, kind):
    mask = columns["mask"]
    weights = loss_weights(mask, mode)
    found = kl_penalty(columns["new"], columns["reference"], mask, 1.0, kind=kind, clamp=10.0, weights=weights)
    (term,) = policy_loss_terms(batch_of(columns), RUNNABLE["ppo"], Hyperparameters(loss_aggregation=mode))
    assert float(found["loss"] / term.counts()[1]) == pytest.approx(verl["losses"][f"{mode} {kind}"], rel=1e-5)


def test_value_losses_are_verls(columns, verl):
    mask = columns["mask"]
    found = clipped_value(columns["values"], columns["old"], columns["returns"], mask, 0.5)["loss"] / mask.sum()
    assert float(found) == pytest.approx(verl["value"], rel=1e-5)


def test_importance_weights_and_the_logged_mismatch_are_verls(columns, verl):
    given = (columns["old"], columns["rollout"], columns["mask"])
    for level in ("token", "sequence"):
        found = importance(*given, level, 2.0)
        assert torch.allclose(found, torch.tensor(verl["weights"][level], dtype=torch.float64))
    found = mismatch(*given)
    for name in ("kl", "k3_kl", "log_ppl_diff"):
        assert found[name] == pytest.approx(verl["mismatch"][name], rel=1e-5), name


@pytest.mark.parametrize("name", ["ppo", "grpo", "dr-grpo", "rloo", "reinforce++"])
def test_advantages_are_verls(columns, verl, name):
    eps, scaled = Hyperparameters(defaults="verl").advantage_eps, name != "dr-grpo"
    how = Estimation(0.9, 0.95, FixedKl(0.0), scale_advantages=scaled, advantage_eps=eps)
    batch = batch_of(columns).apply(lambda x: x.float() if x.is_floating_point() else x)
    found = RUNNABLE[name.removeprefix("dr-")].estimate(batch, how)["advantages"]
    assert torch.allclose(found, torch.tensor(verl["advantages"][name]), atol=1e-5)
