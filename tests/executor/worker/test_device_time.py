"""Protects times on devices: they are those between two events, read when the second one has happened."""

from types import SimpleNamespace

import pytest

from executor.worker import device_time
from executor.worker.device_time import DeviceClock

pytest.importorskip("torch")


def a_device(happened):
    """As ``torch.cuda``: events know the time that the device had when it came to them, once they are waited for."""

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            self.number = sum(what == "made" for what, _ in happened)
            happened.append(("made", self.number))

        def record(self):
            happened.append(("recorded", self.number))

        def synchronize(self):
            happened.append(("waited", self.number))

        def elapsed_time(self, end):
            assert ("waited", end.number) in happened
            return 1500.0 * (end.number - self.number)

    return SimpleNamespace(Event=Event)


def test_a_device_is_asked_for_its_own_time(monkeypatch):
    happened = []
    monkeypatch.setattr(device_time, "accelerator", lambda: a_device(happened))
    clock = DeviceClock()
    happened.append(("work", 0))
    assert clock.stop_s() == 1.5
    order = [("recorded", 0), ("work", 0), ("recorded", 1), ("waited", 1)]
    assert [each for each in happened if each in order] == order


def test_a_process_without_a_device_has_a_clock():
    assert device_time.accelerator() is None
    assert DeviceClock().stop_s() >= 0
