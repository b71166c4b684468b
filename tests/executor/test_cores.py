"""Protects ranks of a CPU from each other and from their own threads: no two share a core while there are enough."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
ON_A_CORE = """
import os, sys
from executor.cores import stay_on_core
stay_on_core(int(sys.argv[1]))
print(*os.sched_getaffinity(0))
"""
WITH_OTHERS = """
import os, socket, time, torch
from pathlib import Path
from executor.collectives import join_world
from executor.records import Identity
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
join_world(Identity("A", 0, 1), f"tcp://127.0.0.1:{port}", torch.device("cpu"), alone=True)
while not (gloo := [int(p.parent.name) for p in Path("/proc/self/task").glob("*/comm") if "gloo" in p.read_text()]):
    time.sleep(0.01)  # a thread takes its name once it runs
print(*{os.sched_getscheduler(thread) == os.SCHED_BATCH for thread in gloo})
"""


def said(script: str, *arguments: str) -> str:
    """What a rank prints in a process of its own: a thread does not get back what it gave up."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_ranks_take_the_cores_that_they_may_use_in_turn() -> None:
    usable = sorted(os.sched_getaffinity(0))
    for number in (0, 1, len(usable)):
        assert said(ON_A_CORE, str(number)) == str(usable[number % len(usable)])


def test_threads_of_gloo_do_not_interrupt_those_that_they_wake_for() -> None:
    assert said(WITH_OTHERS) == "True"
