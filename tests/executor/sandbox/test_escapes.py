"""Protects this machine from programs that try to get out, or to take more than their share, behind each of the walls
that this machine can build. What none of a program's walls, filter and counter promises to stop is not asked for.
"""

import sys

import pytest

from executor.sandbox import run
from executor.sandbox.run import WALLS, Limits, run_program
from executor.sandbox.walls import Kernel, landlock_version
from profiles.units import MIB
from tests.executor.sandbox.escapes import (
    CALLS,
    FILES,
    HOGS,
    WAYS_OUT,
    Escape,
    Outside,
    all_ways_out,
    hog,
    without_sandbox,
)

if sys.platform != "linux":
    pytest.skip("walls are Linux's", allow_module_level=True)

AMPLE = Limits(wall_s=300.0)
SMALL = Limits(wall_s=120.0, memory_bytes=256 * MIB, file_bytes=16 * MIB, processes=16)
AVAILABLE = {
    ran.isolation[0]: set(ran.isolation) for ran in (run_program("", AMPLE, w) for w in WALLS) if ran.status == "0"
}


def promised(each: Escape, isolation: set[str]) -> bool:
    """Whether any of what a program is isolated by must stop it."""
    kept = each.stopped_by & isolation
    return bool(kept - {"landlock"}) or bool(kept and landlock_version(Kernel()) >= each.landlock)


@pytest.fixture(scope="module", params=AVAILABLE)
def tried(request):
    """Every way out, tried in one run, and what was outside."""
    with Outside() as outside:
        yield run_program(all_ways_out(outside), AMPLE, request.param), outside, AVAILABLE[request.param]


@pytest.mark.parametrize("name", WAYS_OUT)
def test_there_is_no_way_out(tried, name):
    ran, _, isolation = tried
    worked = ran.output.splitlines()
    assert (ran.status, worked[-1]) == ("0", "tried all")
    if not promised(WAYS_OUT[name], isolation):
        pytest.skip(f"{' + '.join(ran.isolation)} does not promise it: docs/security.md")
    assert name not in worked


def test_nothing_arrived_and_nothing_changed(tried):
    _, outside, isolation = tried
    if CALLS & isolation:
        assert outside.got == []
    if FILES & isolation and landlock_version(Kernel()) >= 3:
        names = {file.name for file in outside.folder.iterdir()}
        assert names == {"file", "emptied", "deleted", "renamed", "fifo", "stream", "datagram"}
        assert {(outside.folder / file).read_text() for file in ("file", "emptied", "deleted", "renamed")} == {"mine"}
    assert outside.victim.poll() is None


def test_the_ways_out_are_ways_out():
    """Outside of the sandbox they work: a mistake in one of them would pass for a wall."""
    with Outside() as outside:
        worked = without_sandbox(all_ways_out(outside, controls=True)).splitlines()
    assert worked == [*(name for name, each in WAYS_OUT.items() if each.control), "tried all"]


@pytest.mark.parametrize("name", HOGS)
@pytest.mark.parametrize("walls", AVAILABLE)
def test_nothing_takes_more_than_its_share(walls, name):
    """It fails, or is ended long before its time."""
    if not promised(HOGS[name], AVAILABLE[walls]):
        pytest.skip("not promised here: docs/security.md")
    assert run_program(hog(name), SMALL, walls).status in {"1", "memory", "processes", "files", "-9", "137"}


@pytest.mark.parametrize("walls", AVAILABLE)
def test_the_strongest_is_taken_and_told(walls):
    assert run.isolation()[0] == next(iter(AVAILABLE))
    ran = run_program("print('a')", AMPLE, walls)
    assert (ran.status, ran.output, ran.isolation[0]) == ("0", "a\n", walls)
    assert ran.isolation[-1] in {"cgroup", "supervisor"}


@pytest.mark.parametrize("walls", AVAILABLE)
def test_a_program_may_start_others_and_talk_to_them(walls):
    program = """
import asyncio, multiprocessing, subprocess, sys, threading
threads = [threading.Thread(target=print, args=("thread",)) for _ in range(2)]
[t.start() for t in threads], [t.join() for t in threads]
print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout)
here, there = multiprocessing.get_context("fork").Pipe()
child = multiprocessing.get_context("fork").Process(target=there.send, args=("child",))
child.start(), child.join()
print(here.recv())
async def later():
    await asyncio.sleep(0)
    return "later"
print(asyncio.run(later()))
open("file", "w").write("x")
"""
    ran = run_program(program, AMPLE, walls)
    assert (ran.status, ran.output.split()) == ("0", ["thread", "thread", "42", "child", "later"])
