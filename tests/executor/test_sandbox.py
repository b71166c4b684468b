"""Protects this machine from programs: no network, no file of ours changed, nothing left running, no end of output."""

import os
import subprocess
import time

import pytest

from executor import sandbox
from executor.sandbox import Limits, run_program
from profiles.errors import InputError

SHORT = Limits(wall_s=2.0)
ISOLATED = run_program("", SHORT).isolation == "namespaces"
needs_namespaces = pytest.mark.skipif(not ISOLATED, reason="this kernel lets us make no namespaces")


def test_a_program_says_what_it_has_to_say():
    ran = run_program("print('a'); print('b')", SHORT)
    assert (ran.status, ran.output) == ("0", "a\nb\n")
    assert run_program("import sys; sys.exit(3)", SHORT).status == "3"
    assert run_program("raise KeyError", SHORT).status == "1"
    assert run_program("not a program", SHORT).status == "1"


def test_it_has_no_environment_no_input_and_an_empty_folder(monkeypatch):
    monkeypatch.setenv("A_SECRET", "s3cret")
    ran = run_program("import os, sys; print(os.environ, os.listdir('.'), sys.argv, sys.stdin.read())", SHORT)
    assert ran.status == "0"
    assert "s3cret" not in ran.output
    assert "[] ['-']" in ran.output


@pytest.mark.parametrize(
    "program",
    [
        "x = 'x' * (4 << 30)",  # memory
        "open('x', 'wb').write(b'x' * (100 << 20))",  # a file
        "f = [open('/dev/null') for _ in range(100)]",  # open files
    ],
)
def test_what_is_too_much_fails_in_the_program(program):
    assert run_program(program, SHORT).status not in ("0", "lost")


def test_a_program_that_never_ends_is_ended():
    began = time.monotonic()
    assert run_program("while True: pass", Limits(wall_s=0.3)).status == "late"
    assert run_program("import time\ntime.sleep(60)", Limits(wall_s=0.3)).status == "late"
    assert time.monotonic() - began < 10


def test_one_that_never_stops_talking_too():
    ran = run_program("while True: print('x' * 10_000)", SHORT)
    assert ran.status == "talks"
    assert len(ran.output) <= 2 * SHORT.output_bytes


def test_children_end_with_it_wherever_they_hide(tmp_path):
    """A child in a session of its own, whose parent has ended, is in no process group of ours."""
    mark = f"import time; time.sleep(57.{os.getpid()})"
    program = f"""
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", {mark!r}])
    os._exit(0)
os.wait()
"""
    assert run_program(program, SHORT).status == "0"
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert mark not in running


@needs_namespaces
@pytest.mark.parametrize("address", ["('127.0.0.1', {port})", "('192.0.2.1', 80)"])
def test_it_reaches_no_network(address):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = (
            f"import socket\ntry:\n    socket.create_connection({address.format(port=port)}, 1)\nexcept OSError:\n"
        )
        ran = run_program(f"{program}    print('no way')", SHORT)
    assert ran.output == "no way\n"


@needs_namespaces
def test_it_writes_nowhere_but_in_its_folder(tmp_path):
    target = tmp_path / "file"
    target.write_text("mine")
    os.chmod(tmp_path, 0o777)
    for file in (target, tmp_path / "new", "/tmp/new-file-of-a-program", "/dev/shm/new-file-of-a-program"):
        ran = run_program(f"open({str(file)!r}, 'w').write('theirs')", SHORT)
        assert ran.status == "1", file
    assert [f.name for f in tmp_path.iterdir()] == ["file"]
    assert target.read_text() == "mine"
    assert run_program("open('own', 'w').write('x'); print(open('own').read())", SHORT).output == "x\n"


@needs_namespaces
def test_it_sees_and_ends_no_process_of_ours():
    ran = run_program(f"import os\nos.kill({os.getpid()}, 9)", SHORT)
    assert ran.status == "1"
    ran = run_program(f"print(open('/proc/{os.getpid()}/environ').read())", SHORT)
    assert ran.status == "1"


@needs_namespaces
def test_it_has_no_privileges_in_its_own_world():
    ran = run_program("print(open('/proc/self/status').read())", SHORT)
    told = dict(line.split(":\t", 1) for line in ran.output.splitlines() if ":\t" in line)
    assert int(told["CapEff"], 16) == int(told["CapPrm"], 16) == int(told["CapBnd"], 16) == 0
    assert told["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "found",
    [
        "if libc.unshare(sum(NEW_NAMESPACES.values())) != 0:",  # a container that allows no namespaces
        'with open(f"/proc/self/{name}", "w") as file:',  # a kernel that makes them and lets nobody in
    ],
)
def test_without_namespaces_limits_hold(monkeypatch, tmp_path, found):
    text = sandbox.SUPERVISOR.read_text()
    assert text.count(found) == 1
    instead = "if True:" if found.startswith("if") else "raise PermissionError\n        if True:"
    script = tmp_path / "supervisor.py"
    script.write_text(text.replace(found, instead))
    monkeypatch.setattr(sandbox, "SUPERVISOR", script)
    assert run_program("print('a')", SHORT) == sandbox.Ran("0", "a\n", "limits")
    assert run_program("x = 'x' * (4 << 30)", SHORT).status == "1"
    assert run_program("while True: pass", Limits(wall_s=0.3)).status == "late"
    test_children_end_with_it_wherever_they_hide(tmp_path)


def test_a_supervisor_that_dies_is_no_success_and_is_told(monkeypatch, tmp_path):
    script = tmp_path / "supervisor.py"
    script.write_text("import sys; sys.exit(0)")
    monkeypatch.setattr(sandbox, "SUPERVISOR", script)
    assert run_program("print('a')", SHORT).status == "lost"
    sandbox.require_sandbox.cache_clear()
    with pytest.raises(InputError, match=r"programs cannot be run here: .* ended with lost"):
        sandbox.require_sandbox()


def test_libraries_may_be_used():
    assert run_program("import numpy; print(numpy.ones(3).sum())", Limits(wall_s=30.0)).output == "3.0\n"
