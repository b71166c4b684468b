"""Protects ranks of a CPU from each other and from their own threads: no two share a core while there are enough."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
SCRIPT = """
import os, sys, threading
from executor.cores import stay_on_core
stay_on_core(int(sys.argv[1]))
print(*os.sched_getaffinity(0))
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0) == os.SCHED_BATCH))
thread.start()
thread.join()
"""


def lines_of(number: int) -> list[str]:
    """What a rank of that number says, in a process of its own: a thread does not get back what it gave up."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(number)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_ranks_take_the_cores_that_they_may_use_in_turn() -> None:
    usable = sorted(os.sched_getaffinity(0))
    for number in (0, 1, len(usable)):
        assert lines_of(number)[0] == str(usable[number % len(usable)])


def test_threads_of_a_rank_do_not_interrupt_each_other() -> None:
    """Those that it starts later, such as gloo's."""
    assert lines_of(0)[1] == "True"
