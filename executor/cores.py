"""Ranks of a CPU on cores of their own, as numactl binds them, and threads of a rank that do not interrupt each other.

Beside one more busy process a kernel may put two ranks on one core and leave them there: what they compute at once then
takes twice as long. Only for runs that have the machine to themselves: two of them would share the first core.

Gloo's reader wakes while another thread of its rank holds the lock of their socket. Where it interrupts that thread it
asks for the lock again and again until its turn is over: 150,000 times a second, a third of what two ranks on a core
each take to train (docs/log.md, 2026-11-27).
"""

from __future__ import annotations

import os
from contextlib import suppress


def stay_on_core(number: int) -> None:
    """Let this thread, and those that it starts, compute in turn on one core: the ``number``-th it may use, from 0.

    Ranks beyond the last core start again at the first. Nothing changes where the system knows no affinity (macOS).
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    wait_for_turns()


def wait_for_turns() -> None:
    """Put this thread, and those that it starts, into Linux's batch class: as much of a core, but none on waking."""
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may know one class only (gVisor): runs are right there, and slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
