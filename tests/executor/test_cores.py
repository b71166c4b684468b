"""Protects ranks of a CPU from each other: as many as there are cores never share one."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
SCRIPT = """
import os, sys
from executor.cores import stay_on_core
stay_on_core(int(sys.argv[1]))
print(*os.sched_getaffinity(0))
"""


def test_ranks_take_the_cores_that_they_may_use_in_turn() -> None:
    """In a process of its own each, since a thread does not get back what it gave up."""
    usable = sorted(os.sched_getaffinity(0))
    for number in (0, 1, len(usable)):
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(number)], capture_output=True, text=True, check=True)
        assert [int(core) for core in done.stdout.split()] == [usable[number % len(usable)]]
