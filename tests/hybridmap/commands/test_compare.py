"""Protects ``hybridmap compare``: the named placements beside the best, and a reason where there is none."""

import json

import pytest

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def rows(planned):
    from typer.testing import CliRunner

    from hybridmap.cli import app

    result = CliRunner().invoke(app, ["compare", str(planned.job), "--json"])
    assert result.exit_code == 0
    return {row["placement"]: row for row in json.loads(result.stdout)["rows"]}


def test_every_placement_has_a_row(rows, planned):
    assert list(rows) == ["colocate", "split", "standalone", "best found"]
    best = rows["best found"]
    assert best["iteration_s"] == planned.answer["iteration_s"]
    for row in rows.values():
        assert row["iteration_s"] >= best["bound_s"]
        assert {"stages", "tokens_per_s", "memory", "plan"} <= set(row)


def test_people_get_them_side_by_side(planned, run, rows):
    result = run("compare", planned.job)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert " is fastest: about " in lines[0]
    (times,) = (line for line in lines if line.startswith("iteration "))
    for name in ("standalone", "best found"):
        assert f"{rows[name]['iteration_s']:,.2f} s" in times
    assert "\x1b" not in result.stdout


def test_a_placement_that_the_roles_do_not_have(write_job, small_job, run):
    small_job |= {"algorithm": "grpo", "models": {"actor": "llama-3.2-1b"}}
    path = write_job(small_job)
    result = run("compare", path, "--json")
    assert result.exit_code == 0
    row = json.loads(result.stdout)["rows"][1]
    assert (row["placement"], row["status"]) == ("split", "none")
    assert "no critic, reward or cost model to split off" in row["error"]
    assert "no split plan: " in run("compare", path).stdout


def test_a_placement_that_does_not_fit(write_job, small_job, run):
    small_job["models"] = dict.fromkeys(small_job["models"], "qwen2.5-14b")
    path = write_job(small_job)
    rows = {row["placement"]: row for row in json.loads(run("compare", path, "--json").stdout)["rows"]}
    assert rows["standalone"]["status"] == "infeasible"
    assert rows["standalone"]["fewest_gpus"] > 8
    assert rows["colocate"]["status"] == "optimal"
    told = run("compare", path).stdout
    assert "see below" in told and "no standalone plan: " in told


def test_when_nothing_fits_it_is_an_error(write_job, small_job, run):
    small_job["models"] = dict.fromkeys(small_job["models"], "llama-2-70b")
    result = run("compare", write_job(small_job), "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["status"] == "infeasible"


def test_other_systems_stand_beside_the_best_plan(planned, run):
    rows = json.loads(run("compare", planned.job, "--systems", "--json").stdout)["rows"]
    assert [row["system"] for row in rows[:3]] == ["best plan", "deepspeed-chat", "openrlhf"]
    assert rows[0]["over_best"] == 1.0
    for row in rows:
        assert row["status"] == "simulated" or row["error"]
    text = run("compare", planned.job, "--systems").stdout
    assert "other systems are simulated, never run" in text
    assert "tokens/s" in text


@pytest.mark.parametrize("wish", [{"schedule": "one-step-off"}, {"objective": {"maximise": "throughput_per_gpu"}}])
def test_the_best_plan_beside_other_systems_is_that_of_compare(small_job, write_job, run, wish):
    """Every wish of the job counts, the objective aside: both compare by time."""
    path = write_job(small_job | wish)
    placements = json.loads(run("compare", path, "--json").stdout)["rows"]
    systems = json.loads(run("compare", path, "--systems", "--json").stdout)["rows"]
    assert systems[0]["iteration_s"] == placements[-1]["iteration_s"]
    assert systems[0]["plan"] == placements[-1]["plan"]
