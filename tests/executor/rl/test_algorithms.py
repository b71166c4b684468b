"""Protects the scripts: short enough to read at a glance, and those without a critic really learn."""

import ast
import inspect
import statistics

import pytest

from executor.rl.algorithms import RUNNABLE
from executor.run import run
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS
from tests.executor.plans import colocated, config, job

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_every_dataflow_has_a_script():
    assert sorted(RUNNABLE) == sorted(ALGORITHMS)


@pytest.mark.parametrize("algorithm", sorted(RUNNABLE))
def test_a_script_is_under_fifteen_lines(algorithm):
    function = ast.parse(inspect.getsource(RUNNABLE[algorithm].script)).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:]  # behind the docstring
    assert body[-1].end_lineno - body[0].lineno + 1 < 15


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "dapo"])
def test_comparing_responses_to_a_prompt_takes_two(algorithm, tmp_path):
    with pytest.raises(InputError, match=f"{algorithm} compares the responses to a prompt; .* at least 2, it is 1"):
        run(job(algorithm), colocated(algorithm), config(), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "algorithm",
    ["rloo", pytest.param("reinforce++", marks=pytest.mark.long), pytest.param("dapo", marks=pytest.mark.long)],
)
def test_algorithms_without_a_shipped_example_learn_too(algorithm, tmp_path):
    section = config(
        data={"task": "modular-sum", "digits": 3, "alphabet": "0123456789=+"},
        reward={"function": "exact-match"},
        learning_rate=3e-3,
        learning={"entropy_coefficient": 0.02, "clip_high": 0.28, "kl_coefficient": 0.001},
    )
    rewards: list[float] = []
    facts = job(algorithm, prompts=16, samples=8, response=1, minibatches=2)
    watch = lambda _, metrics: rewards.append(metrics["reward"])  # noqa: E731
    run(facts, colocated(algorithm, micro_batch=64), section, tmp_path, 100, watch=watch)
    assert statistics.fmean(rewards[:3]) < 0.15
    assert statistics.fmean(rewards[-5:]) > 0.5
