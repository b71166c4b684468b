"""Protects the examples in help texts: each command has some, and each of them runs."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from hybridmap.cli import app
from hybridmap.text.help_examples import EXAMPLES
from tests.hybridmap.conftest import SMALL_JOB, invoke

pytestmark = pytest.mark.thorough

CATALOGUE = Path(__file__).parents[3] / "profiles" / "models" / "configs"
LOGGED = "step:{} - timing_s/gen:2.0 - timing_s/update_actor:3.0 - timing_s/step:6.0 - response_length/mean:100.0\n"
ELSEWHERE = {
    "run": "tests/hybridmap/commands/test_run.py",
    "ui": "tests/hybridmap/ui",
    "mcp": "tests/hybridmap/agent",
    "watch": "tests/hybridmap/commands/test_watch.py",
    "profile": "tests/hybridmap/commands/test_profile.py",
    "validate": "tests/hybridmap/commands/test_profile.py",
}
"""Commands whose examples need more than a job: where they are tested."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, planned):
    """What the examples assume: a job, its plan, a verl script and logs of it, a model's config."""
    place = tmp_path_factory.mktemp("examples")
    (place / "JOB.yaml").write_text(yaml.safe_dump(SMALL_JOB, sort_keys=False))
    for name in ("hybridmap-out", "other"):
        shutil.copytree(planned.out, place / name)
    script = invoke("export", planned.plan, "--to", "verl").stdout
    (place / "run_verl.sh").write_text(script)
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    (place / "overrides.yaml").write_text(yaml.safe_dump([w for w in words if "." in w.split("=")[0] and "=" in w]))
    (place / "run.sh").write_text(script)
    for name in ("train.log", "before.log", "after.log"):
        (place / name).write_text("".join(LOGGED.format(i) for i in range(8)))
    seconds = {"timing_s/gen": 2.0, "timing_s/update_actor": 3.0, "timing_s/step": 6.0}
    (place / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "data": seconds}) + "\n" for i in range(8)))
    (place / "my-model").mkdir()
    shutil.copy(CATALOGUE / "qwen2.5-0.5b.json", place / "my-model" / "config.json")
    return place


def test_every_command_has_examples():
    assert set(EXAMPLES) == {name for name in get_command(app).commands if name not in ("models", "devices")}


def test_help_shows_them_as_they_are(run):
    for name, lines in EXAMPLES.items():
        shown = run(name, "--help").stdout
        assert all(f"  {line}\n" in shown for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for name, lines in EXAMPLES.items() if name not in ELSEWHERE for line in lines])
def test_each_example_runs(run, folder, monkeypatch, line):
    monkeypatch.chdir(folder)
    words = shlex.split(line)[1:]
    result = run(*words, *(["--force"] if words[0] == "init" else []))
    assert result.exit_code == 0, result.output
