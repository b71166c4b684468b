"""Protects ``hybridmap simulate``: a plan file alone reproduces its own iteration time, and never another job's."""

import json

import pytest
import yaml

HOST_BOUND = {
    "algorithm": "grpo",
    "models": dict.fromkeys(("actor", "reference"), "qwen2.5-1.5b"),
    "engines": {"generation": "tensorrt-llm@1.0"},
    "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
}


def test_a_plan_file_needs_nothing_else(planned, run):
    result = run("simulate", "--plan", planned.plan, "--json")
    answer = json.loads(result.stdout)
    assert result.stderr == ""
    assert answer["iteration_s"] == planned.answer["iteration_s"]
    assert answer["stages"] == planned.answer["stages"]
    assert answer["plan"] == planned.answer["plan"]
    assert answer["tokens_per_s"] == planned.answer["tokens_per_s"]
    for memory in answer["memory"].values():
        assert 0 < memory["used_bytes"] <= memory["capacity_bytes"]


def test_a_plan_may_stand_alone(planned, run):
    named, alone = run("simulate", "--plan", planned.plan, "--json"), run("simulate", planned.plan, "--json")
    assert alone.exit_code == 0, alone.output
    assert alone.stdout == named.stdout


def test_a_job_alone_is_no_plan(planned, run, tmp_path):
    as_json = tmp_path / "job.json"
    as_json.write_text(json.dumps(yaml.safe_load(planned.job.read_text())))
    for path in (planned.job, as_json):
        result = run("simulate", path)
        assert result.exit_code == 2
        assert "needs either a plan.json or a JOB.yaml" in result.stderr
    assert "cannot be read" in run("simulate", tmp_path / "nothing.json").stderr


def test_people_get_the_table(planned, run):
    result = run("simulate", planned.job, "--plan", planned.plan)
    assert result.exit_code == 0
    assert result.stdout.startswith("about ")
    assert "GiB usable" in result.stdout
    assert f"iteration   {planned.answer['iteration_s']:,.2f} s" in result.stdout


def test_the_job_beside_the_plan_must_be_the_same(planned, run, tmp_path):
    job = yaml.safe_load(planned.job.read_text())
    job["workload"]["prompts"] = 128
    job["models"]["reward"] = "qwen2.5-0.5b"
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(job))
    result = run("simulate", other, "--plan", planned.plan)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"workload.prompts: 128 in {other}, 64 in {planned.plan}" in result.stderr
    assert f"models.reward.shape: 'qwen2.5-0.5b' in {other}, 'llama-3.2-1b' in {planned.plan}" in result.stderr


def test_the_same_job_in_other_words_is_the_same(planned, run, tmp_path):
    job = yaml.safe_load(planned.job.read_text())
    job["workload"]["epochs"] = 1
    job["models"]["actor"] = {"shape": "llama-3.2-1b", "precision": "bf16"}
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(job))
    assert run("simulate", other, "--plan", planned.plan).exit_code == 0


def test_changed_prices_are_a_warning(planned, run, tmp_path):
    content = json.loads(planned.plan.read_text()) | {"facts_hash": "0" * 64, "iteration_s": 1.0}
    del content["digest"]  # as files were before there were digests
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    result = run("simulate", "--plan", path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["iteration_s"] == planned.answer["iteration_s"]
    assert result.stderr.startswith("warning: prices changed since ")
    assert len(result.stderr.splitlines()) == 1


def edited(planned, path, edit):
    path.write_text(json.dumps(json.loads(planned.plan.read_text()) | edit))
    return f"warning: {path} was edited after it was written"


@pytest.mark.parametrize(
    "edit", [{"iteration_s": 1.0}, {"bound_s": 1.0, "gap": 0.5}, {"stages": {"generation": 1.0}}, {"runners_up": []}]
)
def test_an_edited_plan_is_noticed_whatever_was_edited(planned, run, tmp_path, edit):
    """Times come from its plan by today's prices, whatever the file says."""
    told, again = edited(planned, tmp_path / "plan.json", edit), run("simulate", tmp_path / "plan.json", "--json")
    assert told in again.stderr.replace("\n", "")
    assert json.loads(again.stdout)["iteration_s"] == planned.answer["iteration_s"]


def test_what_shows_an_edited_plan_says_so(planned, run, tmp_path):
    path = tmp_path / "plan.json"
    told = edited(planned, path, {"iteration_s": 1.0})
    shown = ("simulate", path), ("explain", path, "--time-limit", 1), ("export", path, "--to", "verl")
    for command in (*shown, ("report", path, "-o", tmp_path / "page.html", "--frontier-limit", 0)):
        assert told in run(*command).stderr.replace("\n", "")


def test_a_plan_that_cannot_run_says_why(planned, run, tmp_path):
    content = json.loads(planned.plan.read_text())
    actor = next(role for role in content["plan"]["roles"] if role["role"] == "actor")
    actor["generation"]["kv_cache_bytes"] = 1
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    result = run("simulate", "--plan", path)
    assert result.exit_code == 2
    assert "this plan cannot run: actor generation" in result.stderr


@pytest.mark.parametrize("placement", ["colocate", "standalone"])
def test_the_best_plan_of_a_placement(planned, run, placement):
    result = run("simulate", planned.job, "--placement", placement, "--json")
    answer = json.loads(result.stdout)
    assert len(answer["plan"]["pools"]) == {"colocate": 1, "standalone": 4}[placement]
    assert answer["iteration_s"] >= planned.answer["bound_s"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "needs either a plan.json or a JOB.yaml and --placement"),
        (("--placement", "split"), "needs the JOB.yaml too"),
        (("{job}", "--placement", "split", "--plan", "{plan}"), "needs either"),
        (("--plan", "{plan}", "--even"), "leave --even out"),
        (("{job}", "--placement", "colocate", "--even"), "even halves are defined for the split placement"),
    ],
)
def test_contradicting_options(planned, run, args, message):
    result = run("simulate", *(arg.format(job=planned.job, plan=planned.plan) for arg in args))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("prompts", "samples", "leans"), [(512, 8, True), (64, 1, False)])
def test_a_fitted_constant_that_carries_much_of_an_iteration_is_named(
    run, write_job, tmp_path, prompts, samples, leans
):
    """A small model's engine, of which the host paces each step of 512 sequences and none of eight."""
    work = {"prompts": prompts, "samples_per_prompt": samples, "prompt_length": 128, "response_length": 512}
    job = write_job(HOST_BOUND | {"workload": work})
    made = run("plan", job, "--out", tmp_path / "out", "--json")
    assert made.exit_code == 0, made.output
    named = json.loads(made.stdout)["leans_on"]
    shares = {one["constant"]: one["share"] for one in named if one["of"] == "tensorrt-llm@1.0"}
    assert ("host_s_per_sequence" in shares) is leans
    assert all(share >= 0.15 for share in shares.values())
    plan = tmp_path / "out" / "plan.json"
    assert json.loads(run("simulate", plan, "--json").stdout)["leans_on"] == named
    for said in (run("simulate", plan).stdout, run("plan", job, "--out", tmp_path / "again").stdout):
        assert ("host_s_per_sequence of tensorrt-llm@1.0 (" in said) is leans
        assert not leans or "leans on" in said
