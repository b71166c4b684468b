"""Protects the run section: what is wrong is named all at once, paths start from the job file, nothing heavy loads."""

import subprocess
import sys
from pathlib import Path

import pytest

from executor.run_config import parse_run
from profiles.errors import InputError

GOOD = {"weights": {"actor": "tiny"}, "data": {"task": "sorted-digits", "alphabet": "01"}}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": -1}, "learning_rate: Input should be greater than 0"),
        ({"learning_rat": 1}, "learning_rat: Extra inputs are not permitted"),
        ({"weights": {}}, "weights needs an entry for actor"),
        ({"data": {"alphabet": "01"}}, "data: give either task or file"),
        ({"data": {"task": "sorted-digits"}}, "data: give either alphabet or tokenizer"),
        ({"dtype": "fp16"}, "dtype: Input should be 'fp32' or 'bf16'"),
        ({"on_failure": "retry"}, "on_failure: Input should be 'stop'"),
        ({"learning": {"lam": 2}}, "learning.lam: Input should be less than or equal to 1"),
        ({"engines": {"roles": {"critic": "fsdp3"}}}, "engines.roles.critic.*: Input should be 'torch-native'"),
        (
            {"engines": {"roles": {"reward": "fsdp2"}}, "reward": {"function": "math"}},
            "engines.roles names reward, which is the function math",
        ),
        ({"iterations": 0, "seed": -1}, "iterations: .*; seed: "),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(InputError, match=message):
        parse_run(GOOD | change)


def test_paths_start_from_the_job_file():
    config = parse_run(GOOD | {"plan": "plan.json"}, base=Path("/jobs"))
    assert (config.weights_of("actor"), config.plan) == ("/jobs/tiny", "/jobs/plan.json")
    assert config.weights_of("critic") == "/jobs/tiny"


def test_functions_stand_for_reward_and_cost_only():
    config = parse_run(GOOD | {"reward": {"function": "math"}})
    assert [config.function_of(role) for role in ("actor", "reward", "cost")] == [None, "math", None]


@pytest.mark.parametrize("module", ["executor", "executor.run_config", "executor.run", "executor.recovery.scale_down"])
def test_nothing_heavy_loads_before_a_run_starts(module):
    heavy = ("torch", "ray", "tensordict", "transformers", "ortools", "mapper")
    code = f"import {module}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
