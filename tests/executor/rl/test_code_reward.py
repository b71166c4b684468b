"""Protects the reward for code: right programs pass, and no program hangs, cheats by leaving, or leaves processes."""

import os
import subprocess
from dataclasses import replace

import pytest

from executor.engines.function import FunctionEngine, FunctionSpec, resolve_reward
from executor.rl import code_reward
from executor.rl.code_reward import isolation_note, unit_tests
from executor.rl.text import TextCodec
from executor.run_config import parse_run
from executor.sandbox import run
from executor.sandbox.run import isolation
from profiles.errors import InputError

TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("def add(a, b):\n    return a + b", 1.0),
        ("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", 1.0),
        ("```\nwrong\n```\nBetter:\n```py\ndef add(a, b):\n    return a + b\n```", 1.0),
        ("def add(a, b):\n    return a - b", 0.0),
        ("def add(a, b:", 0.0),
        ("raise SystemExit(0)", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("x = 'x' * (4 << 30)\ndef add(a, b):\n    return a + b", 0.0),
    ],
)
def test_a_program_must_pass_all_tests_to_the_end(response, reward):
    assert unit_tests(response, TESTS) == reward


def test_a_program_that_does_not_end_is_ended_with_its_children(monkeypatch):
    monkeypatch.setattr(code_reward, "LIMITS", replace(code_reward.LIMITS, wall_s=0.5))
    child = f"import time; time.sleep(656.{os.getpid()})"
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\nwhile True: pass"
    assert unit_tests(program, TESTS) == 0.0
    assert child not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_it_has_a_name_for_job_files():
    assert resolve_reward("unit-tests") is unit_tests


def strict(**reward):
    given = {"weights": {"actor": "w"}, "data": {"task": "modular-sum", "alphabet": "01+="}}
    return parse_run({**given, "reward": {"function": "unit-tests", "isolation": "strict", **reward}})


@pytest.mark.parametrize("walls", ["namespaces", "landlock", "limits"])
def test_a_strict_run_refuses_what_is_less_than_the_well_kept_tools(monkeypatch, walls):
    monkeypatch.setattr(run, "isolation", lambda: (walls, "seccomp", "supervisor"))
    with pytest.raises(
        InputError, match=f"{walls}, seccomp, supervisor, without bubblewrap, cgroup.*no program was run"
    ):
        isolation_note(strict())
    ranks = FunctionEngine(FunctionSpec("unit-tests", TextCodec(alphabet="01+="), strict=True))
    with pytest.raises(InputError, match="isolation: strict needs bubblewrap, seccomp, cgroup"):
        ranks.load()  # each machine that scores is asked


def test_a_strict_run_runs_behind_the_well_kept_tools_or_elsewhere(monkeypatch):
    monkeypatch.setattr(run, "isolation", lambda: ("bubblewrap", "seccomp", "cgroup"))
    assert "isolated by" in isolation_note(strict())
    assert isolation_note(strict(function="https://host/score")) is None
    with pytest.raises(InputError, match="mine:score runs in our own processes"):
        strict(function="mine:score")


def test_a_run_says_what_isolates_the_programs():
    given = {"weights": {"actor": "w"}, "data": {"task": "modular-sum", "alphabet": "01+="}}
    assert isolation_note(parse_run(given)) is None
    said = isolation_note(parse_run({**given, "reward": {"function": "unit-tests"}}))
    assert f"isolated by {', '.join(isolation())}" in said
    assert ("bubblewrap" in said.partition("not available")[2]) is (isolation()[0] != "bubblewrap")
