"""Protects who plans a stranger's job: its relative paths stay in its folder, and nothing that never ends is read."""

import os

import pytest
import yaml

from hybridmap.job.load import load_job
from profiles.errors import HybridmapError, InputError
from profiles.relative_paths import inside
from tests.hybridmap.conftest import SMALL_JOB

RUN = {"weights": {"actor": "w"}, "data": {"task": "sorted-digits", "alphabet": "01"}, "plan": "p.json"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "in.csv").write_text("length,count\n1,1\n")
    (tmp_path / "out.csv").write_text("length,count\n1,1\n")
    (folder / "link.csv").symlink_to("../out.csv")
    (folder / "inner.csv").symlink_to("in.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    os.mkfifo(folder / "pipe.csv")
    return folder


def test_paths_inside_and_whole_paths_are_taken(folder):
    for text in ("in.csv", "./in.csv", "none.csv", "a/../in.csv", "inner.csv", "."):
        assert inside(folder, text) == folder / text
    assert inside(folder, str(folder.parent / "out.csv")) == folder.parent / "out.csv"


@pytest.mark.parametrize("text", ["../out.csv", "a/../../out.csv", "link.csv", "..", "none/../../none.csv"])
def test_a_relative_path_that_leads_out_is_refused(folder, text):
    with pytest.raises(InputError, match=r"leads out of .*job, .* write the whole path if that is meant"):
        inside(folder, text)


def test_a_folder_reached_by_a_link_is_a_folder(folder):
    link = folder.parent / "linked"
    link.symlink_to(folder)
    assert inside(link, "in.csv") == link / "in.csv"


def with_path(section, text):
    job = {**SMALL_JOB, "models": dict(SMALL_JOB["models"]), "workload": dict(SMALL_JOB["workload"])}
    if section == "model":
        job["models"]["actor"] = text
    elif section == "histogram":
        job["workload"]["response_length"] = {"histogram": text}
    elif section == "device":
        job["cluster"] = [{"device": text, "nodes": 1}]
    elif section == "engine":
        job["engines"] = {"training": text}
    else:
        job["run"] = {**RUN, **({"weights": {"actor": text}} if section == "weights" else {"plan": text})}
        if section == "data":
            job["run"] = {**RUN, "data": {"file": text, "alphabet": "01"}}
        if section == "tokenizer":
            job["run"] = {**RUN, "data": {"task": "sorted-digits", "tokenizer": text}}
    return job


@pytest.mark.parametrize("section", ["model", "histogram", "device", "engine", "weights", "plan", "data", "tokenizer"])
def test_every_path_of_a_job_follows_the_rule(folder, section):
    text = {"model": "../out.json", "device": "..", "engine": "../e.yaml"}.get(section, "../out.csv")
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(with_path(section, text)))
    with pytest.raises(InputError, match="leads out of"):
        load_job(file)


def test_a_pipe_is_no_file(folder):
    file = folder / "job.yaml"
    for text in ("pipe.csv", str(folder / "pipe.csv"), "/dev/zero"):
        file.write_text(yaml.safe_dump(with_path("histogram", text)))
        with pytest.raises(InputError, match="is neither a file nor a folder"):  # who opened it would wait for ever
            load_job(file)


def test_a_link_to_itself_is_refused_as_unreadable(folder):
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(with_path("histogram", "loop.csv")))
    with pytest.raises(HybridmapError, match="cannot read"):
        load_job(file)
