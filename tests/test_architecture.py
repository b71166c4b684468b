"""Protects the rooms: who may import whom, and that planning and help load nothing heavy that they do not need."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINES = ("torch", "ray", "vllm", "megatron", "transformers")


CLOCK = re.compile(r"perf_counter|monotonic\(|process_time|time\.time\(|from time import|timeit")
LIMIT = re.compile(r"(?:timeout|limit_s)\s*=\s*([\d_.]+)")
MAY_LOOK = {"work.py", "killer.py", "test_architecture.py"}
"""Where waiting ends, and where processes are killed at a random time."""


def test_no_test_depends_on_how_fast_the_machine_is():
    """Tests count work (tests/work.py) and wait for what must come; what is to expire does so within two seconds, what
    guards against hangs after a minute at the least."""
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        if file.name in MAY_LOOK:
            continue
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            place = f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
            assert not CLOCK.search(line), f"{place} looks at a clock"
            limits = [float(found) for found in LIMIT.findall(line)]
            assert all(limit >= 60 or limit <= 2 for limit in limits), f"{place} may be over before what it waits for"


def test_the_formatter_decides_how_code_looks():
    marks = ("# fmt" + ": skip", "# fmt" + ": off")
    for room in ("profiles", "simulator", "mapper", "executor", "hybridmap", "benchmarks", "tests"):
        for file in (ROOT / room).rglob("*.py"):
            assert not any(mark in file.read_text() for mark in marks), file


def loaded_by(statement: str, *modules: str) -> list[str]:
    """Which of ``modules`` a fresh interpreter has after ``statement``."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps([m for m in {modules!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "modules"),
    [
        ("import hybridmap.cli", ENGINES),
        # help and errors must be instant: no solver, no tables, no numbers
        ("import hybridmap.cli", ("ortools", "pyarrow", "pandas", "numpy", "scipy", "rich.table")),
        ("import hybridmap", ("ortools", "pyarrow", "pydantic", "typer")),
        ("import profiles.store, profiles.models.catalogue, profiles.engine_facts", ("ortools", "typer", *ENGINES)),
        ("import simulator.play.simulate, simulator.facts", ("ortools", "typer", *ENGINES)),
        # a job is read without the solver
        ("import hybridmap.job.load, hybridmap.files.plan", ("ortools", *ENGINES)),
    ],
)
def test_imports_stay_light(statement, modules):
    assert loaded_by(statement, *modules) == []


def test_no_room_of_odds_and_ends():
    for room in ("profiles", "simulator", "mapper", "hybridmap"):
        names = {path.stem for path in (ROOT / room).rglob("*.py")}
        assert not names & {"utils", "util", "helpers", "common", "misc"}


RUNS_CODE = {
    "modules": {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"},
    "names": {"eval", "exec", "compile"},
    "attributes": {
        ("torch", "load"),
        ("yaml", "load"),
        ("yaml", "safe_load"),
        ("yaml", "unsafe_load"),
        ("yaml", "full_load"),
        ("np", "load"),
        ("os", "system"),
        ("os", "popen"),
        ("pd", "read_pickle"),
    },
    "arguments": {"trust_remote_code", "allow_pickle", "shell"},
}
"""What could run what a file says. YAML is parsed in one place, which bounds it."""

MAY = {("profiles/yaml_text.py", "yaml.load")}


def code_runners(tree):
    """Everything of ``RUNS_CODE`` in a module, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in RUNS_CODE["modules"])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUNS_CODE["modules"]:
            yield node.module
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in RUNS_CODE["names"]:
                yield called.id
            owner = called.value if isinstance(called, ast.Attribute) else None
            if isinstance(owner, ast.Name) and (owner.id, called.attr) in RUNS_CODE["attributes"]:
                yield f"{owner.id}.{called.attr}"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in RUNS_CODE["arguments"] and not off:
                    yield f"{keyword.arg}="


def test_no_file_of_others_is_unpickled_or_evaluated():
    found = set()
    for room in ("profiles", "simulator", "mapper", "executor", "hybridmap"):
        for path in (ROOT / room).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            found |= {(name, what) for what in code_runners(ast.parse(path.read_text()))}
    assert found <= MAY


def test_the_search_for_code_runners_finds_them():
    code = "import pickle\nfrom dill import load\neval(x)\ntorch.load(f)\nf(trust_remote_code=True)\nf(shell=False)"
    assert list(code_runners(ast.parse(code))) == ["pickle", "dill", "eval", "torch.load", "trust_remote_code="]
