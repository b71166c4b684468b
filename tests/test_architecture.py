"""Protects the rooms: who may import whom, and that planning and help load nothing heavy that they do not need."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINES = ("torch", "ray", "vllm", "megatron", "transformers")


def loaded_by(statement: str, *modules: str) -> list[str]:
    """Which of ``modules`` a fresh interpreter has after ``statement``."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps([m for m in {modules!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_import_rules_hold():
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or shutil.which("lint-imports")
    assert command, "import-linter belongs to the development install"
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("statement", "modules"),
    [
        ("import hybridmap.cli", ENGINES),
        # help and errors must be instant: no solver, no tables, no numbers
        ("import hybridmap.cli", ("ortools", "pyarrow", "pandas", "numpy", "scipy", "rich.table")),
        ("import hybridmap", ("ortools", "pyarrow", "pydantic", "typer")),
        ("import profiles.store, profiles.catalogue, profiles.engine_facts", ("ortools", "typer", *ENGINES)),
        ("import simulator.simulate, simulator.facts", ("ortools", "typer", *ENGINES)),
        # a job is read without the solver
        ("import hybridmap.config, hybridmap.plan_file", ("ortools", *ENGINES)),
    ],
)
def test_imports_stay_light(statement, modules):
    assert loaded_by(statement, *modules) == []


def test_no_room_of_odds_and_ends():
    for room in ("profiles", "simulator", "mapper", "hybridmap"):
        names = {path.stem for path in (ROOT / room).rglob("*.py")}
        assert not names & {"utils", "util", "helpers", "common", "misc"}
