"""Protects the reward for code: right programs pass, and no program hangs, cheats by leaving, or leaves processes."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from executor import code_reward
from executor.code_reward import unit_tests
from executor.engines.function import resolve_reward

TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"


@pytest.mark.parametrize(("response", "reward"), [
    ("def add(a, b):\n    return a + b", 1.0),
    ("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", 1.0),
    ("```\nwrong\n```\nBetter:\n```py\ndef add(a, b):\n    return a + b\n```", 1.0),
    ("def add(a, b):\n    return a - b", 0.0),
    ("def add(a, b:", 0.0),
    ("raise SystemExit(0)", 0.0),
    ("import os\nos._exit(0)", 0.0),
    ("x = 'x' * (4 << 30)\ndef add(a, b):\n    return a + b", 0.0),
])  # fmt: skip
def test_a_program_must_pass_all_tests_to_the_end(response, reward):
    assert unit_tests(response, TESTS) == reward


def test_a_program_that_does_not_end_is_ended_with_its_children(monkeypatch, tmp_path):
    monkeypatch.setattr(code_reward, "LIMITS", replace(code_reward.LIMITS, wall_s=0.5))
    mark = tmp_path / "alive"
    program = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1.5); open({str(mark)!r}, \"w\")'])\n"
        "while True: pass"
    )
    started_s = time.monotonic()
    assert unit_tests(program, TESTS) == 0.0
    assert time.monotonic() - started_s < 3
    time.sleep(2)
    assert not Path(mark).exists()


def test_it_has_a_name_for_job_files():
    assert resolve_reward("unit-tests") is unit_tests
