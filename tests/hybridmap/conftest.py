"""Shared by the tests of the face: a small job, a runner, and one plan of it that many tests read."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from hybridmap.cli import app

SMALL_JOB = {
    "algorithm": "ppo",
    "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "llama-3.2-1b"),
    "workload": {"prompts": 64, "prompt_length": 256, "response_length": 256, "minibatches": 2},
    "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
}


@pytest.fixture
def small_job():
    """A fresh copy of a job that plans in a moment."""
    return copy.deepcopy(SMALL_JOB)


@pytest.fixture
def write_job(tmp_path):
    """Write a job (a mapping, or raw text) to ``job.yaml`` and give its path."""

    def write(job, name="job.yaml"):
        path = tmp_path / name
        path.write_text(job if isinstance(job, str) else yaml.safe_dump(job, sort_keys=False))
        return path

    return write


def invoke(*args, columns=None):
    """Run the command in this process, on a pipe of ``columns`` or of as many as nobody said."""
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": columns and str(columns)})


@pytest.fixture
def run():
    return invoke


@pytest.fixture(scope="session")
def planned(tmp_path_factory):
    """The small job, planned once by the command: where its files are, and what ``--json`` said."""
    folder = tmp_path_factory.mktemp("planned")
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(SMALL_JOB, sort_keys=False))
    result = invoke("plan", job, "--out", folder / "out", "--json")
    assert result.exit_code == 0, result.output
    return SimpleNamespace(
        job=job, out=folder / "out", plan=folder / "out" / "plan.json", answer=json.loads(result.stdout)
    )


@pytest.fixture(scope="session")
def examples():
    """The job files that users start from."""
    found = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    assert len(found) >= 6
    return found
