"""Protects the peak memory of a GPU: what its driver has given away, also where torch's allocator does not know it."""

from types import SimpleNamespace

import pytest

from executor import memory

GIB = 1 << 30


class Gpu(SimpleNamespace):
    """One GPU as torch and its driver see it: what an engine keeps asleep counts with torch alone."""

    outside = 0
    asleep = 0
    allocated = reserved = peak = 0

    def is_initialized(self):
        return True

    def hold(self, allocated, reserved):
        self.allocated, self.reserved, self.peak = allocated, reserved, max(self.peak, allocated)

    def mem_get_info(self):
        return 80 * GIB - self.reserved - self.outside + self.asleep, 80 * GIB

    def memory_reserved(self):
        return self.reserved

    def max_memory_allocated(self):
        return self.peak

    def reset_peak_memory_stats(self):
        self.peak = self.allocated


@pytest.fixture
def gpu(monkeypatch):
    found = Gpu()
    monkeypatch.setattr(memory, "_cuda", lambda: found)
    memory.reset_peak_memory()
    return found


def test_what_torch_does_not_know_counts_and_what_it_only_keeps_does_not(gpu):
    gpu.outside = 3 * GIB  # a context, NCCL, a graph
    gpu.hold(20 * GIB, 24 * GIB)
    gpu.hold(8 * GIB, 24 * GIB)
    assert memory.peak_memory_bytes() == 23 * GIB
    memory.reset_peak_memory()
    assert memory.peak_memory_bytes() == 11 * GIB


@pytest.mark.parametrize(("engine", "with_trainer", "peak"), [(30, 70, 40), (50, 60, 50)])
def test_an_engine_counts_until_it_sleeps(gpu, engine, with_trainer, peak):
    """Weights and cache, given back before a trainer works: GiB that torch calls held are never there at once."""
    gpu.hold(engine * GIB, engine * GIB)
    memory.note_peak_memory()
    gpu.asleep = engine * GIB
    gpu.hold(with_trainer * GIB, with_trainer * GIB)
    assert memory.peak_memory_bytes() == peak * GIB
