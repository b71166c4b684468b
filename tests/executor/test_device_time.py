"""Protects times on devices: they are those between two events, read when the second one has happened."""

from types import SimpleNamespace

import pytest

from executor import device_time
from executor.device_time import DeviceClock, DeviceSeconds

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


def test_pieces_of_work_are_added_up_without_a_wait_between_them(monkeypatch):
    """Collectives and copies of a call: the host goes on, and who asks for their seconds waits."""
    happened = []
    monkeypatch.setattr(device_time, "accelerator", lambda: a_device(happened))
    clock = DeviceSeconds()
    for _ in range(2):
        with clock.running():
            happened.append(("work", 0))
    assert "waited" not in {what for what, _ in happened}
    assert clock.seconds == clock.seconds == 2 * 1.5
    assert [number for what, number in happened if what == "waited"] == [1, 3]


def test_a_process_without_a_device_has_a_clock():
    assert device_time.accelerator() is None
    assert DeviceClock().stop_s() >= 0
