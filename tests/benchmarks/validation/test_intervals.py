"""Protects what a report of other people's tables says of intervals: the shipped ones, each row once."""

import numpy as np
import pytest

from benchmarks.validation import intervals
from benchmarks.validation.intervals import inside_intervals
from benchmarks.validation.markdown import summary_text
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row
from simulator.uncertainty import ErrorRange


@pytest.fixture
def frame():
    """Two rows of one cluster, one of them outside, and one of another; the first has a rate beside its time."""
    where = {"level": "A", "model_kind": "dense", "schedule": "sync", "family": "f"}
    rows = [
        Row("rl", "x", "step_time_s", 10.0, 10.0, device="h100-80gb-sxm", low=8.0, high=12.0, **where),
        Row("rl", "x", "tokens_per_s_per_gpu", 9.0, 9.0, device="h100-80gb-sxm", low=7.0, high=11.0, **where),
        Row("rl", "y", "step_time_s", 20.0, 10.0, device="h100-80gb-sxm", low=8.0, high=18.0, **where),
        Row("rl", "z", "step_time_s", 10.0, 10.0, device="gb200", low=5.0, high=20.0, **where),
    ]
    return frame_of(rows)


@pytest.fixture(autouse=True)
def calibration(monkeypatch):
    """One range of a cluster's own rows, one of the table's."""
    ranges = {
        "rl/dense/sync/hopper": ErrorRange(low=0.8, high=1.2, rows=9, families=9),
        "rl/dense/sync/blackwell": ErrorRange(low=0.5, high=2.0, rows=30, families=12, of="rl"),
    }
    monkeypatch.setattr(intervals, "range_of", ranges.__getitem__)


def test_share_inside_and_mean_width_by_cluster_and_of_all(frame):
    found = {line["cluster"]: line for line in inside_intervals(frame)}
    assert list(found) == ["all of rl", "rl", "rl/dense/sync/hopper"]
    assert found["rl/dense/sync/hopper"]["rows"] == 2 and found["rl/dense/sync/hopper"]["inside"] == 0.5
    assert found["rl/dense/sync/hopper"]["high over low"] == pytest.approx(np.sqrt(1.5 * 2.25))
    assert found["all of rl"]["inside"] == pytest.approx(2 / 3)


def test_a_range_that_a_wider_cluster_gave_stands_under_its_name(frame):
    (line,) = [line for line in inside_intervals(frame) if line["cluster"] == "rl"]
    assert (line["rows"], line["holds"]) == (1, "rl/dense/sync/blackwell")


def test_the_summary_prints_them(frame):
    assert "| rl/dense/sync/hopper | 2 | 50.0% | 1.837 |  |" in summary_text(frame)


def test_a_report_without_intervals_says_nothing_of_them(frame):
    bare = frame.assign(low=np.nan, high=np.nan)
    assert inside_intervals(bare) == [] and "intervals" not in summary_text(bare)
