"""Protects programs in the sandbox: what they say arrives, what they lack is told, and nothing of them is left.

What they must not reach or hold: test_sandbox_escapes.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.sandbox import run
from executor.sandbox.run import WALLS, Limits, run_program
from profiles.errors import InputError

AMPLE = Limits(wall_s=300.0)
PYTHONS = [Path(folder) for folder in (sys.prefix, sys.base_prefix)]
ON_THE_WAY = {folder.parts[2] for folder in PYTHONS if folder.is_relative_to("/tmp")}
"""The program's folder is its /tmp: a Python that lies under ours is seen there."""
AVAILABLE = [walls for walls in WALLS if run_program("", AMPLE, walls).status == "0"]


def test_a_program_says_what_it_has_to_say():
    ran = run_program("print('a'); print('b')", AMPLE)
    assert (ran.status, ran.output) == ("0", "a\nb\n")
    assert run_program("import sys; sys.exit(3)", AMPLE).status == "3"
    assert run_program("raise KeyError", AMPLE).status == "1"
    assert run_program("not a program", AMPLE).status == "1"


def test_it_has_no_environment_no_input_and_an_empty_folder(monkeypatch):
    monkeypatch.setenv("A_SECRET", "s3cret")
    ran = run_program("import os, sys; print(os.environ, sys.argv, sys.stdin.read()); print(*os.listdir('.'))", AMPLE)
    assert ran.status == "0"
    said, names = ran.output.splitlines()
    assert "s3cret" not in said
    assert said.endswith("['-'] ")
    assert set(names.split()) <= ON_THE_WAY


def test_it_writes_in_its_folder():
    assert run_program("open('own', 'w').write('x'); print(open('own').read())", AMPLE).output == "x\n"


@pytest.mark.parametrize("walls", AVAILABLE)
@pytest.mark.parametrize(
    "program",
    ["while True: pass", "import time\ntime.sleep(600)", "import os\nos.close(1)\nos.close(2)\nwhile True: pass"],
)
def test_a_program_that_never_ends_is_ended(walls, program):
    assert run_program(program, Limits(wall_s=0.3), walls).status == "late"


def test_one_that_never_stops_talking_too():
    ran = run_program("while True: print('x' * 10_000)", AMPLE)
    assert ran.status == "talks"
    assert len(ran.output) <= AMPLE.output_bytes


def test_it_cannot_say_how_it_ended():
    program = """
import os, sys
for out in (1, 2):
    os.write(out, b'{"status": "0", "isolation": ["mine"], "reason": ""}\\n')
sys.exit(1)
"""
    ran = run_program(program, AMPLE)
    assert (ran.status, ran.isolation) == ("1", run.isolation())


@pytest.mark.parametrize("walls", AVAILABLE)
def test_children_end_with_it_wherever_they_hide(walls):
    """A child in a session of its own, whose parent has ended, is in no process group of ours."""
    mark = f"import time; time.sleep(657.{os.getpid()})"
    program = f"""
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", {mark!r}])
    os._exit(0)
os.wait()
"""
    assert run_program(program, AMPLE, walls).status == "0"
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert mark not in running


@pytest.fixture
def supervisor_that_dies(monkeypatch):
    monkeypatch.setattr(run, "SUPERVISOR", "import sys; sys.exit('out of something')")
    run.isolation.cache_clear()
    yield
    run.isolation.cache_clear()


def test_a_supervisor_that_dies_is_no_success_and_is_told(supervisor_that_dies):
    ran = run_program("print('a')", AMPLE, "limits")
    assert (ran.status, ran.reason) == ("lost", "out of something")
    with pytest.raises(InputError, match=r"programs cannot be run here: .*limits: out of something"):
        run.isolation()


def test_walls_that_cannot_be_built_start_no_program(monkeypatch):
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    ran = run_program("print('a')", AMPLE, "bubblewrap")
    assert (ran.status, ran.output, ran.reason) == ("lost", "", "OSError: there is no bubblewrap (bwrap)")


def test_libraries_may_be_used():
    assert run_program("import numpy; print(numpy.ones(3).sum())", AMPLE).output == "3.0\n"
