"""What is done on a device: seconds between events of its stream, and the kernels that ran in between."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def accelerator() -> Any:
    """Torch's module of the accelerator that this process has started, as ``torch.cuda``; never imports torch itself.

    ``None`` where a call's work is done when it returns: on CPUs, and before an engine has loaded.
    """
    torch = sys.modules.get("torch")
    device = torch.accelerator.current_accelerator() if torch is not None else None
    module = torch.get_device_module(device) if torch is not None and device is not None else None
    return module if module is not None and module.is_initialized() else None


class DeviceClock:
    """Runs from when it is made. On a device two events of its stream stand around the work, elsewhere a clock does."""

    def __init__(self) -> None:
        self._device = accelerator()
        self._start_s = time.perf_counter()
        if self._device is not None:
            self._start = self._device.Event(enable_timing=True)
            self._start.record()

    def stop(self) -> None:
        """Stop when the device comes to this point; waits for nothing."""
        if self._device is None:
            self._end_s = time.perf_counter()
            return
        self._end = self._device.Event(enable_timing=True)
        self._end.record()

    def taken_s(self) -> float:
        """Seconds from start to stop, once the device is through with what was given to it in between."""
        if self._device is None:
            return self._end_s - self._start_s
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    def stop_s(self) -> float:
        """Stop, and wait for the seconds since the start."""
        self.stop()
        return self.taken_s()


class DeviceSeconds:
    """Seconds of work that is asked for in pieces, between events of a device; who reads them waits for the last."""

    def __init__(self) -> None:
        self._known_s = 0.0
        self._pending: list[DeviceClock] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is asked of the device inside."""
        clock = DeviceClock()
        yield
        clock.stop()
        self._pending.append(clock)

    @property
    def seconds(self) -> float:
        """What all pieces have taken so far."""
        self._known_s += sum(clock.taken_s() for clock in self._pending)
        self._pending.clear()
        return self._known_s


@contextmanager
def kernels_into(found: dict[str, float]) -> Iterator[None]:
    """Add the seconds of each operation and kernel that runs inside, by its name: torch's profiler's.

    On GPUs kernels of every library are among them, also those of captured graphs. The profiler costs time: a call
    that is watched is no measurement.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes lines of its own to stderr
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as watching:
        yield
    for event in watching.key_averages():
        microseconds = event.self_device_time_total or event.self_cpu_time_total
        found[event.key] = found.get(event.key, 0.0) + microseconds * 1e-6
