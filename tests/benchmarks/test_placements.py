"""Protects how placements are compared: what a calibration learns from is of all rounds, and drift is told."""

import pytest

from benchmarks.placements import rounds_apart, spread_over, swapped


def test_what_is_learned_from_is_of_every_round() -> None:
    """Ten of five rounds of twelve: two of each."""
    taken = spread_over(range(60), 10)
    assert len(taken) == 10
    assert [sum(i // 12 == part for i in taken) for part in range(5)] == [2, 2, 2, 2, 2]
    assert spread_over(range(4), 10) == [0, 1, 2, 3]


def test_rounds_of_a_machine_that_changed_lie_apart() -> None:
    assert rounds_apart([1.0, 1.0, 1.1, 1.1], 2) == pytest.approx(0.1)
    assert rounds_apart([1.0, 2.0, 1.0, 2.0], 2) == 0.0, "iterations that differ are no drift"


def test_order_counts_beyond_the_spread() -> None:
    fast = {"placement": "a", "predicted_s": 2.0, "measured_s": 1.0, "low_s": 0.9, "high_s": 1.1}
    slow = {"placement": "b", "predicted_s": 1.0, "measured_s": 2.0, "low_s": 1.9, "high_s": 2.1}
    assert swapped([fast, slow]) == [("a", "b")]
    assert swapped([fast, slow | {"low_s": 1.05}]) == []
