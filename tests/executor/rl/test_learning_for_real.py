"""Protects the examples that train: their plans can run, their job files are sound, and rewards really rise.

The stored curves (``examples/run/curves``) are whole runs; here the same jobs run shorter.
"""

import json
import statistics

import pytest

from executor.controller.pools import Devices
from executor.recovery.scale_down import scale_down
from executor.run import run
from simulator.feasibility import check_plan
from tests.executor.jobs import read_job
from tests.executor.plans import EXAMPLES

pytestmark = pytest.mark.thorough

JOBS = sorted(EXAMPLES.glob("*-tiny.yaml"))
CHANCE = 1 / 16
"""Sixteen tokens, one of them right."""


def test_there_is_one_for_each_algorithm():
    assert [path.stem for path in JOBS] == ["grpo-tiny", "ppo-tiny", "remax-tiny", "safe-rlhf-tiny"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_job_and_plan_fit_each_other(path, tmp_path):
    facts, plan, config = read_job(path, tmp_path)
    assert plan.algorithm == facts.algorithm
    assert check_plan(plan, facts) == []
    assert config.iterations >= 200


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_stored_curve_rises_from_chance_to_near_the_maximum(path):
    curve = json.loads((EXAMPLES / "curves" / f"{path.stem}.json").read_text())["reward"]
    assert statistics.fmean(curve[:5]) < 2 * CHANCE
    assert statistics.fmean(curve[-20:]) > 0.85


def test_the_stored_cost_comes_under_its_limit_and_stays_there_while_the_reward_rises():
    curve = json.loads((EXAMPLES / "curves" / "safe-rlhf-tiny.json").read_text())
    costs, rewards, limit = curve["costs"], curve["reward"], 0.2
    assert statistics.fmean(costs[:5]) > 4 * limit
    assert max(mean_of_20(costs, at) for at in range(40, len(costs) - 19)) < limit
    assert mean_of_20(rewards, 40) < 0.1 < 0.85 < mean_of_20(rewards, len(rewards) - 20)
    assert min(curve["costs_without_the_constraint"]) > 4 * limit


def mean_of_20(curve, start):
    return statistics.fmean(curve[start : start + 20])


@pytest.mark.slow
@pytest.mark.long
def test_a_shorter_safe_rlhf_run_holds_its_cost_under_the_limit_while_the_reward_rises(tmp_path):
    rows = shortened("safe-rlhf", 130, tmp_path)
    rewards, costs = ([row[name] for row in rows] for name in ("reward", "costs"))
    assert statistics.fmean(costs[:5]) > 0.8
    assert max(mean_of_20(costs, at) for at in range(40, 111)) < 0.2
    assert statistics.fmean(rewards[:40]) < CHANCE
    assert statistics.fmean(rewards[-10:]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "iterations", "least"),
    [("ppo", 70, 0.6), ("grpo", 90, 0.5), pytest.param("remax", 110, 0.5, marks=pytest.mark.long)],
)
def test_a_shorter_run_raises_the_reward(name, iterations, least, tmp_path):
    rewards = [row["reward"] for row in shortened(name, iterations, tmp_path)]
    assert statistics.fmean(rewards[:5]) < 2 * CHANCE
    assert statistics.fmean(rewards[-10:]) > least


def shortened(name, iterations, tmp_path):
    """Metrics of the first iterations of an example, in this process."""
    facts, plan, config = read_job(EXAMPLES / f"{name}-tiny.yaml", tmp_path)
    config = config.model_copy(update={"launcher": "local"})
    rows: list[dict[str, float]] = []
    small = scale_down(plan, Devices(len(plan.pools)))
    run(facts, small, config, tmp_path / "out", iterations, watch=lambda _, metrics: rows.append(metrics))
    return rows
