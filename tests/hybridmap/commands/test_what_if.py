"""Protects `what-if`: each row is the plan of the job with those settings, and wrong settings fail before searching."""

import json

import pytest


def asked(run, *args):
    result = run("what-if", *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_case_is_the_plan_of_the_changed_job(run, planned, small_job, write_job, tmp_path):
    answer = asked(run, planned.job, "--set", "workload.response_length=128,256", "--out", tmp_path)
    assert answer["base"]["plan"] == planned.answer["plan"]
    assert [case["settings"] for case in answer["cases"]] == [
        {"workload.response_length": 128},
        {"workload.response_length": 256},
    ]
    small_job["workload"]["response_length"] = 128
    alone = run("plan", write_job(small_job), "--out", tmp_path / "alone", "--json")
    assert answer["cases"][0]["iteration_s"] == json.loads(alone.stdout)["iteration_s"]
    assert answer["cases"][1]["iteration_s"] == answer["base"]["iteration_s"]


def test_several_settings_are_combined(run, planned, tmp_path):
    answer = asked(
        run, planned.job, "--set", "cluster.0.nodes=1,2", "--set", "workload.minibatches=2,4", "--out", tmp_path
    )
    pairs = [tuple(case["settings"].values()) for case in answer["cases"]]
    assert pairs == [(1, 2), (1, 4), (2, 2), (2, 4)]
    assert json.loads((tmp_path / "what-if.json").read_text())["cases"] == answer["cases"]


def test_a_case_that_does_not_fit_is_a_row(run, planned, tmp_path):
    answer = asked(run, planned.job, "--set", "models.actor=llama-3.1-405b", "--out", tmp_path)
    (case,) = answer["cases"]
    assert case["status"] == "infeasible"
    assert case["iteration_s"] is None
    assert case["fewest_gpus"] > 8
    table = run("what-if", planned.job, "--set", "models.actor=llama-3.1-405b", "--out", tmp_path).stdout
    assert "does not fit" in table


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("workload.promts=4", "did you mean prompts?"),
        ("cluster.3.nodes=4", "entries 0 to 0"),
        ("workload.prompts", "expected KEY=VALUE"),
        ("workload.prompts.x=4", "no mapping"),
        ("models.actor.precision=fp8", "set models.actor itself"),
        ("workload.prompts=[1", "is no value"),
        (f"workload.prompts={','.join(map(str, range(1, 80)))}", "at most 64"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(run, planned, tmp_path, setting, message):
    result = run("what-if", planned.job, "--set", setting, "--out", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_same_setting_twice_is_refused(run, planned):
    result = run("what-if", planned.job, "--set", "workload.prompts=1", "--set", "workload.prompts=2")
    assert result.exit_code == 2
    assert "given twice" in result.stderr
