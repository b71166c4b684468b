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


def reset_peak_memory() -> None:
    """Start a new peak. The kernel's peak of resident memory cannot be reset: on CPU it is the process's so far."""
    cuda = _cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()


def peak_memory_bytes() -> int:
    """Largest memory in use since the last reset (GPU), or ever (CPU)."""
    cuda = _cuda()
    if cuda is not None:
        return int(cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_capacity_bytes() -> int:
    """Memory of this process's GPU, or of the host."""
    cuda = _cuda()
    if cuda is not None:
        return int(cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
