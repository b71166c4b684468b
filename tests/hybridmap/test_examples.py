"""Protects the examples: each loads, plans to a proven optimum that can run, and reproduces itself exactly."""

import json
from pathlib import Path

import pytest

from hybridmap.files.plan import read_plan_file
from hybridmap.job.load import load_job
from simulator.feasibility import check_plan
from tests.draws import ALL

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))

DEAREST = {"safe-rlhf-34b-64xa100", "grpo-qwen3-30b-a3b-32xh100", "ppo-qwen2.5-7b-critic32b-64xh100"}
"""Half of what all examples take: planned a second time in ``make check-all`` alone."""


def test_all_of_them_are_tried(examples):
    assert examples == EXAMPLES
    assert {path.stem for path in EXAMPLES} > DEAREST


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, run, tmp_path):
    first = run("plan", path, "--out", tmp_path / "first", "--json")
    assert first.exit_code == 0, first.output
    answer = json.loads(first.stdout)
    assert answer["status"] == "optimal"
    assert answer["notes"] == []

    file = read_plan_file(tmp_path / "first" / "plan.json")
    assert check_plan(file.plan, load_job(path).facts()) == []

    simulated = run("simulate", "--plan", tmp_path / "first" / "plan.json", "--json")
    assert simulated.stderr == ""
    assert json.loads(simulated.stdout)["iteration_s"] == answer["iteration_s"] == file.iteration_s

    if path.stem in DEAREST and not ALL:
        return
    assert run("plan", path, "--out", tmp_path / "second").exit_code == 0
    for name in ("plan.json", "timeline.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
