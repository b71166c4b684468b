"""Protects plan.json: complete, the same bytes each time, written whole or not at all, refused when it is not one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hybridmap.files.plan import plan_file_of, read_plan, read_plan_file, require_folder, write_records
from hybridmap.job.load import job_from_document, load_job
from mapper.search.find_plan import find_plan
from profiles.errors import FileFormatError, InputError
from simulator.feasibility import check_plan
from simulator.plan.seal import sealed


def test_it_carries_everything_a_later_step_needs(planned):
    content = json.loads(planned.plan.read_text())
    assert set(content) == {
        "schema_version",
        "hybridmap_version",
        "job",
        "facts_hash",
        "objective",
        "searched",
        "status",
        "iteration_s",
        "bound_s",
        "gap",
        "seed",
        "stages",
        "tokens_per_s",
        "num_gpus",
        "plan",
        "runners_up",
        "digest",
    }
    assert content["objective"] == "time"
    assert content["searched"] == {"placement": "any", "even": False}
    assert all(set(other) == {"placement", "iteration_s", "bound_s", "plan"} for other in content["runners_up"])


def test_what_a_runner_up_is_surely_not_below_is_in_the_file(planned, tmp_path):
    job = load_job(planned.job)
    found = find_plan(job.request())
    open_ = replace(found.runners_up[0], bound_s=found.iteration_s)
    file = plan_file_of(job, replace(found, runners_up=(open_,)), "any", even=False)
    write_records(tmp_path, {"plan.json": file})
    assert read_plan_file(tmp_path / "plan.json").runners_up[0].bound_s == found.iteration_s


def test_files_from_before_runners_up_had_bounds_are_unchanged_by_their_digest(planned, tmp_path):
    content = json.loads(planned.plan.read_text())
    assert content["runners_up"] and all(other.pop("bound_s") is None for other in content["runners_up"])
    (tmp_path / "plan.json").write_text(json.dumps(content))
    file = read_plan_file(tmp_path / "plan.json")
    assert file.digest == file.digest_now()


def test_it_reads_back_as_what_was_planned(planned):
    file = read_plan_file(planned.plan)
    assert job_from_document(file.job) == load_job(planned.job)
    assert check_plan(file.plan, load_job(planned.job).facts()) == []
    assert file.iteration_s == planned.answer["iteration_s"]
    assert sum(file.stages.values()) == pytest.approx(file.iteration_s)


def test_nothing_of_the_run_is_in_the_bytes(planned, run, tmp_path):
    assert run("plan", planned.job, "--out", tmp_path / "again").exit_code == 0
    for name in ("plan.json", "timeline.json"):
        assert (tmp_path / "again" / name).read_bytes() == (planned.out / name).read_bytes()
    assert sorted(os.listdir(planned.out)) == ["plan.json", "timeline.json"]  # and no temporary file is left


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c | {"schema_version": 2}, "schema_version is 2, this hybridmap .* reads 1"),
        (lambda c: c | {"schema_version": True}, "schema_version is true"),
        (lambda c: {k: v for k, v in c.items() if k != "schema_version"}, "schema_version is nothing"),
        (lambda c: {k: v for k, v in c.items() if k != "facts_hash"}, "facts_hash: is missing"),
        (lambda c: c | {"extra": 1}, "extra: "),
        (lambda c: c | {"plan": c["plan"] | {"pools": 3}}, r"plan\.pools: got 3"),
        (lambda c: c["plan"], "not a plan file but another kind of JSON"),
        (lambda c: {"spans": [], "schema_version": 1}, "not a plan file but a timeline"),
        (lambda c: [c], "it holds a list of 1, not a JSON object"),
    ],
)
def test_what_is_no_plan_file_is_refused(planned, tmp_path, change, message):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(change(json.loads(planned.plan.read_text()))))
    with pytest.raises(FileFormatError, match=message) as caught:
        read_plan_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_file_is_refused_with_the_place(planned, tmp_path, share):
    path = tmp_path / "plan.json"
    text = planned.plan.read_text()
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(FileFormatError, match=r"not JSON at line \d+, column \d+"):
        read_plan_file(path)


def test_the_folder_that_a_plan_was_written_to_is_refused_with_what_it_holds(tmp_path):
    """``--plan`` takes the file; ``--out`` of ``plan`` is its folder, and is given for it."""
    with pytest.raises(InputError, match=r"is a folder; name a file in it \(it holds no JSON\)"):
        read_plan_file(tmp_path)
    for name in ("plan.json", "timeline.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=r"name a file in it \(plan.json, timeline.json\)"):
        read_plan_file(tmp_path)


def test_a_failed_write_leaves_what_was_there(planned, tmp_path, monkeypatch):
    records = {"plan.json": read_plan_file(planned.plan), "timeline.json": read_plan_file(planned.plan)}

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "plan.json").write_text("before")
    with pytest.raises(InputError, match="No space left"):
        write_records(tmp_path / "old", records)
    assert os.listdir(tmp_path / "old") == ["plan.json"]
    assert (tmp_path / "old" / "plan.json").read_text() == "before"
    with pytest.raises(InputError, match="No space left"):
        write_records(tmp_path / "new" / "deep", records)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_is_refused_early(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        require_folder(tmp_path / "file" / "below")
    require_folder(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()


def test_a_plan_to_run_has_the_pools_that_its_roles_name(planned, tmp_path):
    content = json.loads(planned.plan.read_text())
    path = tmp_path / "plan.json"
    content["plan"]["roles"][1]["pool"] = "elsewhere"
    for document in (content, content["plan"]):
        path.write_text(json.dumps(document))
        with pytest.raises(FileFormatError, match="critic is on pool 'elsewhere', the plan has A"):
            read_plan(path)
    content["plan"]["pools"] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="pool names must differ, got A,"):
        read_plan(path)


@pytest.mark.parametrize("job", sorted((Path(__file__).parents[3] / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_digest_survives_the_file(planned, job, tmp_path):
    """Whatever values a job has, reading them back gives the same digest."""
    file = read_plan_file(planned.plan).model_copy(update={"job": dict(load_job(job).document)})
    file = sealed(file)
    write_records(tmp_path, {"plan.json": file})
    assert read_plan_file(tmp_path / "plan.json").digest_now() == file.digest
