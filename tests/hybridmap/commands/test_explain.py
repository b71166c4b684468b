"""Protects ``hybridmap explain``: sections for people, keys for programs, one line for what cannot be."""

import json

import pytest


def test_a_plan_file_is_explained_without_a_search(planned, run):
    result = run("explain", "--plan", planned.plan, "--time-limit", 2, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer["iteration_s"] == planned.answer["iteration_s"]
    assert sum(s["seconds"] for s in answer["stages"]) == pytest.approx(answer["iteration_s"])
    assert [r["placement"] for r in answer["runners_up"]] == [r["placement"] for r in planned.answer["runners_up"]]
    tried = {t["dimension"] for t in answer["thresholds"]} | set(answer["steady"]) | set(answer["skipped"])
    assert {"network", "response", "prompts", "nodes"} <= tried


def test_people_read_why(planned, run):
    result = run("explain", planned.job, "--time-limit", 1)
    assert result.exit_code == 0
    for phrase in (
        "of about ",
        "twice the speed would save ",
        "memory      pool A holds ",
        "waiting     ",
        "the runner-up, ",
        "observed    ",
    ):
        assert phrase in result.stdout


def test_a_job_or_a_plan(planned, run):
    for args in ((), (planned.job, "--plan", planned.plan)):
        result = run("explain", *args)
        assert result.exit_code == 2
        assert result.stderr == "Error: explain needs either a plan.json or a JOB.yaml\n"


def test_what_is_no_plan(planned, run, tmp_path):
    broken = tmp_path / "plan.json"
    broken.write_text("{")
    result = run("explain", "--plan", broken, "--json")
    assert result.exit_code == 2
    assert "not JSON" in json.loads(result.stdout)["error"]


def test_a_plan_for_a_target_is_explained_and_its_job_compared_within_its_rules(planned, run, tmp_path):
    """A reference that waits on the host, as verl's FSDP keeps it, holds nothing on the GPU while others run."""
    made = run("plan", planned.job, "--target", "verl/fsdp", "--out", tmp_path)
    assert made.exit_code == 0
    assert " ".join(made.stdout.split()).endswith("--target verl/fsdp")
    result = run("explain", tmp_path / "plan.json", "--time-limit", 2, "--json")
    assert result.exit_code == 0, result.stderr
    job = tmp_path / "job.yaml"
    job.write_text(planned.job.read_text() + "target: verl/fsdp\n")
    compared = run("compare", job, "--json")
    assert json.loads(compared.stdout)["notes"][0].startswith("planned for verl/fsdp")
