"""Protects the examples that train: their plans can run, their job files are sound, and rewards really rise.

The stored curves (``examples/run/curves``) are whole runs; here the same jobs run shorter.
"""

import json
import statistics

import pytest

from executor.run import run
from executor.scale_down import scale_down
from simulator.feasibility import check_plan
from tests.executor.jobs import read_job
from tests.executor.plans import EXAMPLES

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "iterations", "least"),
    [("ppo", 80, 0.6), ("grpo", 100, 0.5), ("remax", 120, 0.5), ("safe-rlhf", 80, 0.5)],
)
def test_a_shorter_run_raises_the_reward(name, iterations, least, tmp_path):
    facts, plan, config = read_job(EXAMPLES / f"{name}-tiny.yaml", tmp_path)
    config = config.model_copy(update={"launcher": "local"})
    rewards: list[float] = []
    small = scale_down(plan, len(plan.pools))
    run(facts, small, config, tmp_path / "out", iterations, watch=lambda _, m: rewards.append(m["reward"]))
    assert statistics.fmean(rewards[:5]) < 2 * CHANCE
    assert statistics.fmean(rewards[-10:]) > least
