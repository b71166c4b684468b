"""Protects what looks at the ends of runs: it sees children, their ends, and shared memory that has a name."""

import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory

from tests.executor.families import alive, family_of, shared_memory_of


def test_children_their_ends_and_named_shared_memory_are_seen():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held = SharedMemory(create=True, size=100)
    try:
        family = family_of(os.getpid())
        assert {os.getpid(), child.pid} <= family.keys()
        assert f"/dev/shm/{held.name}" in map(str, shared_memory_of(family))
        ours = {child.pid: family[child.pid]}
        assert len(alive(ours)) == 1
        child.kill()
        child.wait()
        assert alive(ours) == []
        assert alive({os.getpid(): "0"}) == []  # a number that was given again
    finally:
        child.kill()
        held.close()
        held.unlink()
