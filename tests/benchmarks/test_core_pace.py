"""Protects the look at a machine's cores: a process on each, none left behind, and the environment as it was."""

import multiprocessing
import os

from benchmarks.core_pace import ONE_THREAD, CorePace


def test_it_computes_on_all_cores_and_leaves_nothing_behind() -> None:
    """How long it takes is the machine's matter."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    with CorePace() as cores:
        assert cores.measure_s() > 0
        assert len(multiprocessing.active_children()) == len(os.sched_getaffinity(0))
    assert multiprocessing.active_children() == []
    assert {name: os.environ.get(name) for name in ONE_THREAD} == before
