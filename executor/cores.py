"""Ranks of a CPU on cores of their own, as numactl binds them.

Beside one more busy process a kernel may put two ranks on one core and leave them there: what they compute at once then
takes twice as long. Only for runs that have the machine to themselves: two of them would share the first core.
"""

from __future__ import annotations

import os


def stay_on_core(number: int) -> None:
    """Let this thread, and those that it starts, compute on one core: the ``number``-th that it may use, from 0.

    Ranks beyond the last core start again at the first. Nothing changes where the system knows no affinity (macOS).
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
