"""Protects the look at a machine's cores: a process on each, none left behind."""

import multiprocessing
import os

from executor.profiling.core_pace import CorePace


def test_it_computes_on_all_cores_and_leaves_nothing_behind() -> None:
    """How long it takes is the machine's matter."""
    with CorePace(64) as cores:
        assert cores.measure_s() > 0
        assert len(multiprocessing.active_children()) == min(64, os.cpu_count() or 1)
    assert multiprocessing.active_children() == []
