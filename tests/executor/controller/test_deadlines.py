"""Protects the limit on calls: it follows the slowest so far, and a call counts only when all its ranks are through."""

import pytest

from executor.controller import deadlines
from executor.controller.deadlines import CallLimits, Deadlines
from executor.records import CallRecord


def record(seconds):
    return CallRecord(0, "k", "k", "actor", "A", 0, 10.0, 10.0 + seconds, 0, 0, 0, 0, 0, 0)


def test_the_first_call_has_the_longest_limit_and_later_ones_follow_the_slowest(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: now_s[0])
    found = Deadlines(CallLimits(least_s=5.0, factor=10.0, first_s=300.0))
    assert found.left_s(0, "actor.update") == 300.0
    now_s[0] += 20.0
    assert found.left_s(0, "actor.update") == 280.0
    found.note(0, "actor.update", [record(0.1)])
    assert found.left_s(0, "actor.update") == 280.0  # one rank answered; the others may take longer
    found.note(0, "actor.update", [record(2.0)])
    assert found.left_s(1, "actor.update") == 20.0
    found.note(1, "actor.update", [record(0.2)])
    assert found.left_s(2, "actor.update") == 20.0  # the slowest ever
    found.note(2, "critic.update", [record(0.01)])
    assert found.left_s(3, "critic.update") == 5.0
    assert found.limit_s("critic.other") == 300.0


def test_time_runs_from_when_a_call_became_the_oldest(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: now_s[0])
    found = Deadlines(CallLimits(first_s=60.0))
    found.left_s(0, "a.b")
    now_s[0] = 50.0
    assert found.left_s(1, "a.c") == pytest.approx(60.0)
