"""Protects ``hybridmap frontier`` and what ``plan`` says of objectives, pins and hints."""

import json

import pytest

PRICE = {"minimise": "cost", "price_per_gpu_hour": {"h100-80gb-sxm": 3.6}}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The small job with a price: its frontier as a program and as a person reads it, and the folder."""
    import yaml

    from tests.hybridmap.conftest import SMALL_JOB, invoke

    folder = tmp_path_factory.mktemp("frontier")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(SMALL_JOB | {"objective": PRICE}))
    told = [invoke("frontier", path, "--out", folder / "out", *flags) for flags in (("--json",), ())]
    assert [each.exit_code for each in told] == [0, 0], told[0].output
    return json.loads(told[0].stdout), told[1], folder


def test_points_are_a_proven_frontier_with_prices(answers):
    document, _, folder = answers
    points = document["points"]
    assert [p["num_gpus"] for p in points] == sorted({p["num_gpus"] for p in points})
    assert [p["iteration_s"] for p in points] == sorted({p["iteration_s"] for p in points}, reverse=True)
    for point in points:
        assert point["status"] == "optimal" and point["proven"]
        assert point["bound_s"] <= point["iteration_s"]
        assert point["cost_per_iteration"] == pytest.approx(point["iteration_s"] * point["num_gpus"] * 1e-3)
        assert sum(pool["num_gpus"] for pool in point["plan"]["pools"]) == point["num_gpus"]
    assert document["written"] == [str(folder / "out" / "frontier.json")]


def test_the_file_holds_the_job_and_the_points(answers):
    from hybridmap.job.load import job_from_document

    document, _, folder = answers
    file = json.loads((folder / "out" / "frontier.json").read_text())
    assert file["points"] == document["points"]
    assert job_from_document(file["job"]).request().objective.prices == (("h100-80gb-sxm", 3.6),)


def test_the_fastest_point_is_the_plan(answers, planned):
    document, _, _ = answers
    assert document["points"][-1]["iteration_s"] == planned.answer["iteration_s"]


def test_a_person_reads_a_table(answers):
    _, result, _ = answers
    assert result.stderr == ""
    for word in (
        "GPUs",
        "iteration",
        "tokens/s",
        "per GPU",
        "cost",
        "change",
        "perfect scaling",
        "proven",
        "frontier.json",
    ):
        assert word in result.stdout
    assert "->" in result.stdout or "regrouped" in result.stdout


def test_plan_says_the_objective_where_it_is_not_time(answers, planned, run, tmp_path):
    document, _, folder = answers
    told = run("plan", folder / "job.yaml", "--out", tmp_path / "out")
    assert "objective   the least cost at 3.6 per GPU-hour: " in told.stdout
    answer = json.loads(run("plan", folder / "job.yaml", "--out", tmp_path / "out", "--json").stdout)
    assert answer["objective"]["goal"] == "cost"
    assert answer["objective"]["bound"] <= answer["objective"]["value"]
    assert answer["objective"]["value"] <= min(p["cost_per_iteration"] for p in document["points"]) * (1 + 1e-6)
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["objective"] == "cost"
    assert "objective" not in planned.answer
    assert run("simulate", "--plan", tmp_path / "out" / "plan.json").exit_code == 0


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("throughput_per_gpu", "objective   the most tokens/s per GPU: "),
        (
            {"minimise": "gpus", "target_iteration_s": 60},
            "objective   the fewest GPUs with an iteration of at most 60 s: ",
        ),
    ],
)
def test_other_objectives(write_job, small_job, run, tmp_path, objective, said):
    told = run("plan", write_job(small_job | {"objective": objective}), "--out", tmp_path / "out")
    assert told.exit_code == 0, told.output
    assert said in told.stdout
    assert "proof       optimal: " in told.stdout


def test_pins_hold_in_plan_and_compare(write_job, small_job, run, tmp_path):
    pin = {
        "share": {"require": [["actor", "reference"]], "forbid": [["actor", "critic"]]},
        "actor": {"gpus": 4, "device": "h100-80gb-sxm", "training": {"tp": 4, "pp": 1}, "generation": {"tp": [1, 2]}},
    }
    path = write_job(small_job | {"pin": pin})
    plan = json.loads(run("plan", path, "--out", tmp_path / "out", "--json").stdout)["plan"]
    pool = next(pool for pool in plan["pools"] if "actor" in pool["roles"])
    assert pool["num_gpus"] == 4
    assert "reference" in pool["roles"] and "critic" not in pool["roles"]
    actor = next(entry for entry in plan["roles"] if entry["role"] == "actor")
    assert (actor["training"]["tp"], actor["training"]["pp"]) == (4, 1)
    assert actor["generation"]["tp"] in (1, 2)
    rows = json.loads(run("compare", path, "--json").stdout)["rows"]
    assert {row["placement"]: row["status"] for row in rows}["colocate"] == "infeasible"


def test_a_hint_is_taken_or_left_aside_in_one_line(planned, write_job, small_job, run, tmp_path):
    again = run("plan", planned.job, "--out", tmp_path / "out", "--hint", planned.plan)
    assert "the hint" not in again.stdout
    pinned = write_job(small_job | {"pin": {"actor": {"training": {"recompute": "full"}}}})
    other = run("plan", pinned, "--out", tmp_path / "out", "--hint", planned.plan)
    assert other.exit_code == 0
    notes = [line for line in other.stdout.splitlines() if line.startswith("note: the hint is ignored")]
    assert len(notes) == 1
    told = json.loads(run("plan", pinned, "--out", tmp_path / "out", "--hint", planned.plan, "--json").stdout)
    assert any("hint" in note for note in told["notes"])


def test_a_short_time_limit_still_answers_with_its_gap(planned, run, tmp_path):
    result = run("plan", planned.job, "--out", tmp_path / "out", "--time-limit", "0.001", "--json")
    answer = json.loads(result.stdout)
    assert answer["iteration_s"] >= planned.answer["bound_s"]
    assert 0 <= answer["gap"] <= 1


def test_a_bar_shows_on_a_terminal_only_after_a_while(monkeypatch, capsys):
    import sys

    from hybridmap import console

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for after_s, shown in ((60.0, False), (0.0, True)):
        monkeypatch.setattr(console, "BAR_AFTER_S", after_s)
        with console.progress_bar("budgets") as progress:
            progress(1, 4)
        assert ("budgets" in capsys.readouterr().err) is shown
