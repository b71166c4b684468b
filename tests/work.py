"""Counted work in place of seconds: no test may depend on how fast or how busy the machine is."""

from __future__ import annotations

import gc
import os
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HANGS_S = 300.0
"""What takes longer has hung. Nothing is said about its speed by that."""


def calls_of(run: Callable[[], object]) -> int:
    """How many Python and C functions ``run`` calls: the same on every machine, and in every run but the first."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # it may call what others have registered
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def wait_until(condition: Callable[[], object], what: str, pause_s: float = 0.05) -> None:
    """Until ``condition`` is true; fails where that never comes."""
    ends_s = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < ends_s, f"{what}: not after {HANGS_S:.0f} s"
        time.sleep(pause_s)


def far_s() -> float:
    """A deadline of ``time.perf_counter`` that does not come."""
    return time.perf_counter() + HANGS_S


class Clock:
    """Stands in for a module's ``time``: sleeping takes no time and passes it, and so may being asked."""

    def __init__(self, asked_s: float = 0.0) -> None:
        self.now_s, self.cpu_s, self.asked_s = 1_000.0, 0.0, asked_s

    def read(self) -> float:
        self.now_s += self.asked_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        """As sleeping, on a core."""
        self.sleep(seconds)
        self.cpu_s += seconds

    @property
    def module(self) -> SimpleNamespace:
        asked = dict.fromkeys(("time", "monotonic", "perf_counter"), self.read)
        return SimpleNamespace(**asked, process_time=lambda: self.cpu_s, sleep=self.sleep)


def number_elsewhere(response, answer):
    """A reward: the number that the response is, in any process but the one that the answer names."""
    return float(response) if os.getpid() != int(answer) else -1.0
