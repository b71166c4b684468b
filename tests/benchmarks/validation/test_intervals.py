"""Protects what a report of other people's tables says of intervals: the shipped ones, each row once."""

import numpy as np
import pytest

from benchmarks.validation.intervals import inside_intervals
from benchmarks.validation.markdown import summary_text
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row


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


def test_share_inside_and_mean_width_by_cluster_and_of_all(frame):
    found = {line["cluster"]: line for line in inside_intervals(frame)}
    assert list(found) == ["rl", "rl/dense/sync/blackwell", "rl/dense/sync/hopper"]
    assert found["rl/dense/sync/hopper"]["rows"] == 2 and found["rl/dense/sync/hopper"]["inside"] == 0.5
    assert found["rl/dense/sync/hopper"]["high over low"] == pytest.approx(np.sqrt(1.5 * 2.25))
    assert found["rl"]["inside"] == pytest.approx(2 / 3)


def test_the_summary_prints_them(frame):
    assert "| rl/dense/sync/hopper | 2 | 50.0% | 1.837 |" in summary_text(frame)


def test_a_report_without_intervals_says_nothing_of_them(frame):
    bare = frame.assign(low=np.nan, high=np.nan)
    assert inside_intervals(bare) == [] and "intervals" not in summary_text(bare)
