"""Protects the commands that ``hybridmap plan`` names next: they run as they are shown, and mean the same job."""

import json
import shlex

import pytest
import yaml

from tests.hybridmap.conftest import SMALL_JOB, invoke

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What ``plan --target`` of a job in a folder with a blank in its name printed, and the seconds of its plan."""
    folder = tmp_path_factory.mktemp("a folder")
    job = folder / "my job.yaml"
    job.write_text(yaml.safe_dump(SMALL_JOB | {"algorithm": "grpo", "models": {"actor": "llama-3.2-1b"}}))
    result = invoke("plan", job, "--target", "verl/fsdp", "--out", folder / "out", columns=400)
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads((folder / "out" / "timeline.json").read_text())["iteration_s"], folder


def commands(text):
    lines = text.split("next  ", 1)[1].splitlines()
    return [words[1:] for words in map(shlex.split, lines) if words and words[0] == "hybridmap"]


def test_each_runs_as_it_is_shown_for_the_same_target(shown, run, monkeypatch):
    text, iteration_s, folder = shown
    monkeypatch.chdir(folder)
    report, export, compare = commands(text)
    for words in (report, export):
        result = run(*words)
        assert result.exit_code == 0, (words, result.output)
    assert compare[0] == "compare" and compare[2:] == ["--target", "verl/fsdp"]
    found = json.loads(run(*compare, "--json").stdout)
    (best,) = (row for row in found["rows"] if row["placement"] == "best found")
    assert best["iteration_s"] <= iteration_s * (1 + 1e-9)
    assert any("planned for verl/fsdp" in note for note in found["notes"])
    for role in best["plan"]["roles"]:
        layouts = [role[stage] for stage in ("training", "inference") if role.get(stage)]
        assert all((layout["tp"], layout["pp"]) == (1, 1) for layout in layouts)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--target", "verl"), "unknown target"), (("--target", "slime", "--systems"), "leave out --target")],
)
def test_what_cannot_be_is_told(planned, run, words, said):
    result = run("compare", planned.job, *words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
