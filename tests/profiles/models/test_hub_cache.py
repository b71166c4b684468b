"""Protects the local Hugging Face cache: an id that was downloaded is a model, and nothing is ever fetched."""

import shutil
from pathlib import Path

import pytest

from hybridmap.job.load import job_from_mapping
from profiles.errors import UnknownNameError
from profiles.models.catalogue import load_model
from profiles.models.hub_cache import cached_config

CONFIG = Path(__file__).parents[3] / "profiles" / "models" / "configs" / "qwen2.5-0.5b.json"
ID = "my-lab/Tuned-0.5B"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with two revisions of one model, of which ``main`` is the older."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--my-lab--Tuned-0.5B"
    for revision in ("aaaa", "bbbb"):
        (folder / "snapshots" / revision).mkdir(parents=True)
        shutil.copy(CONFIG, folder / "snapshots" / revision / "config.json")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("aaaa")
    return folder


def test_an_id_in_the_cache_is_a_model(cache):
    assert cached_config(ID) == cache / "snapshots" / "aaaa" / "config.json"
    assert load_model(ID).num_params == load_model("qwen2.5-0.5b").num_params


def test_without_main_any_revision_does(cache):
    (cache / "refs" / "main").unlink()
    assert cached_config(ID).parent.name in ("aaaa", "bbbb")


@pytest.mark.parametrize("text", ["my-lab/other", "../models--my-lab--Tuned-0.5B/x", "a/b/c", "plain"])
def test_what_is_not_there_is_none(cache, text):
    assert cached_config(text) is None


def test_a_job_names_it_and_holds_its_shape(cache):
    work = {"prompts": 16, "prompt_length": 64, "response_length": 64, "minibatches": 1}
    raw = {"algorithm": "grpo", "models": {"actor": ID}, "workload": work}
    job = job_from_mapping(raw | {"cluster": [{"device": "h100-80gb-sxm", "nodes": 1}]}, "job", Path())
    assert job.facts().roles["actor"].shape.name == "tuned-0.5b"
    assert job.facts().roles["actor"].shape.num_params == load_model("qwen2.5-0.5b").num_params


def test_an_unknown_id_is_an_error_and_no_download(cache):
    with pytest.raises(UnknownNameError):
        load_model("my-lab/never-heard-of-1b")
