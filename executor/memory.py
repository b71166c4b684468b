"""Peak memory of this process: of its GPU where torch uses one, else resident memory."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any


def _cuda() -> Any:
    """``torch.cuda`` if this process has started it; never imports torch by itself."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    return torch.cuda


_PEAK_BYTES = [0]
"""The largest of the intervals that ``note_peak_memory`` has ended since the last reset."""


def reset_peak_memory() -> None:
    """Start a new peak. The kernel's peak of resident memory cannot be reset: on CPU it is the process's so far."""
    cuda = _cuda()
    _PEAK_BYTES[0] = 0
    if cuda is not None:
        cuda.reset_peak_memory_stats()


def note_peak_memory() -> None:
    """Count what was held until now: before memory of a GPU comes or goes of which torch's allocator does not know.

    Torch knows its own peak. What else the driver has given away is added: contexts, NCCL, graphs, other processes;
    what torch counts and an engine that sleeps has given back to the driver is taken off.
    """
    cuda = _cuda()
    if cuda is not None:
        free_bytes, total_bytes = cuda.mem_get_info()
        beyond_torch = total_bytes - free_bytes - cuda.memory_reserved()
        _PEAK_BYTES[0] = max(_PEAK_BYTES[0], cuda.max_memory_allocated() + beyond_torch)
        cuda.reset_peak_memory_stats()


def peak_memory_bytes() -> int:
    """Largest memory in use since the last reset (GPU, as its driver says), or ever (CPU)."""
    if _cuda() is not None:
        note_peak_memory()
        return int(_PEAK_BYTES[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_capacity_bytes() -> int:
    """Memory of this process's GPU, or of the host."""
    cuda = _cuda()
    if cuda is not None:
        return int(cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
