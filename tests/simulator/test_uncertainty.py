"""Protects the interval: it holds the prediction, grows with weaker evidence, and never claims what nobody checked."""

import math
from pathlib import Path

import pytest

from profiles.errors import FileFormatError
from profiles.records import Basis
from simulator import uncertainty
from simulator.uncertainty import Calibration, ErrorRange, interval, load_calibration


@pytest.fixture
def calibration(monkeypatch):
    """A calibration with one biased kind and one wide kind."""
    half = {"measured": 0.05, "published": 0.15, "interpolated": 0.08, "fitted": 0.15, "analytic": 0.25, "assumed": 0.3}
    kinds = {
        "rl": ErrorRange(low=1.05, high=1.30, rows=9, systems=2),  # everything measured took longer than predicted
        "training": ErrorRange(low=0.5, high=2.0, rows=40, systems=4),
    }
    found = Calibration(half_width=half, kinds=kinds)
    monkeypatch.setattr(uncertainty, "load_calibration", lambda: found)
    return found


def test_the_prediction_is_always_inside(calibration):
    low, high = interval({"measured": 1.0}, "rl")
    assert low == pytest.approx(math.exp(-0.05)) and low < 1
    assert high == pytest.approx(math.exp(math.hypot(math.log(1.3), 0.05)))


def test_weaker_evidence_widens(calibration):
    widths = [interval({basis: 1.0}, "rl") for basis in ("measured", "interpolated", "fitted", "analytic", "assumed")]
    assert widths == sorted(widths, key=lambda w: (-w[0], w[1])) and len(set(widths)) == 5


def test_an_unknown_kind_takes_the_widest_spread(calibration):
    assert interval({"measured": 1.0}, "never validated") == interval({"measured": 1.0}, "training")


def test_the_shipped_file_knows_every_kind_of_evidence():
    assert set(load_calibration().half_width) == {basis.name.lower() for basis in Basis}


def test_a_broken_file_is_named(tmp_path: Path):
    (tmp_path / "u.yaml").write_text("half_width: [1")
    with pytest.raises(FileFormatError, match=r"u\.yaml: line 2, column 1: "):
        load_calibration(tmp_path / "u.yaml")
