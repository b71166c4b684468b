"""Protects the memory meter: its peak is of the storages that live at once, and an operation's cost is constant."""

import torch

from executor.weights.memory_meter import MemoryMeter


def test_peak_is_of_what_lives_at_once():
    known = torch.empty(4)
    with MemoryMeter([known]) as meter:
        first = torch.empty(10)
        view = first.view(2, 5)  # no memory of its own
        del first
        assert meter.live_bytes == 16 + 40
        del view
        assert meter.live_bytes == 16
        torch.empty(25)
        grown = torch.empty(1)
        grown.untyped_storage().resize_(80)
        grown.zero_()
        assert meter.live_bytes == 16 + 80
    assert meter.peak_bytes == 16 + 100


def test_an_operation_looks_at_no_other_tensor(monkeypatch):
    """Twelve thousand tensors took 101 s when each new one asked all others whether they live."""
    tensors = [torch.empty(1) for _ in range(3000)]
    meter = MemoryMeter(tensors)
    asked = []
    monkeypatch.setattr(meter, "_live", Watched(meter._live, asked))  # noqa: SLF001
    with meter:
        torch.empty(8)
    assert len(asked) <= 4
    assert meter.live_bytes == 4 * 3000


class Watched(dict):
    """A dictionary that notes what is asked of it; whoever walks through it asks for everything."""

    def __init__(self, given, asked):
        super().__init__(given)
        self.asked = asked

    def get(self, key, default=None):
        self.asked.append(key)
        return super().get(key, default)

    def items(self):
        self.asked += list(self)
        return super().items()

    def values(self):
        self.asked += list(self)
        return super().values()
