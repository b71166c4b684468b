"""Protects the intervals from optimism: fitted rows stay out, rates count as times, and other sources are the test."""

import pandas as pd
import pytest
import yaml

from benchmarks.validation import calibrate
from benchmarks.validation.accuracy import accuracy_text
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row
from simulator.uncertainty import load_calibration


def frame(ratios, fit=False, system="a"):
    """Training rows whose measured over predicted time is as given."""
    rows = [
        Row("training", f"{system}{i}", "step_time_s", 100.0 * ratio, 100.0, fit=fit, system=system, device="b200-sxm")
        for i, ratio in enumerate(ratios)
    ]
    return frame_of(rows)


def test_fitted_rows_and_memory_do_not_count():
    memory = frame_of([Row("training", "m", "peak_mem_gib", 1.0, 9.0)])
    both = pd.concat([frame([1.1]), frame([5.0], fit=True, system="f"), memory], ignore_index=True)
    assert calibrate.residuals(both).ratio.tolist() == pytest.approx([1.1])


def test_a_rate_counts_as_the_time_it_stands_for_and_once():
    rows = [Row("training", "x", "tokens_per_s_per_gpu", 100.0, 80.0), Row("training", "x", "mfu", 0.5, 0.4)]
    assert calibrate.residuals(frame_of(rows)).ratio.tolist() == pytest.approx([0.8])  # faster than predicted
    with_time = [*rows, Row("training", "x", "step_time_s", 9.0, 10.0)]
    assert calibrate.residuals(frame_of(with_time)).ratio.tolist() == pytest.approx([0.9])


def test_spread_leaves_one_row_in_twenty_outside_at_each_end():
    low, high = calibrate.spread_of([1 + i / 100 for i in range(39)])
    assert (low, high) == pytest.approx((1.01, 1.37))  # the second smallest and largest of 39
    assert calibrate.spread_of([0.9, 1.2]) == (0.9, 1.2)


def test_coverage_on_other_sources_is_reported():
    both = pd.concat([frame([0.9, 1.0, 1.1]), frame([2.0, 2.1], system="b")], ignore_index=True)
    (line,) = calibrate.coverage(both)
    assert line["covered"] == 1.0 and line["covered, source left out"] == 0.0


def test_the_file_keeps_what_is_declared(tmp_path):
    path = tmp_path / "uncertainty.yaml"
    path.write_text("# why\nhalf_width:  # by evidence\n  measured: 0.05\nkinds: {}\n")
    calibrate.write_calibration(frame([0.9, 1.2]), path)
    assert path.read_text().startswith("# why\nhalf_width:  # by evidence\n  measured: 0.05\n")
    spread = load_calibration(path).kinds["training"]
    assert (spread.low, spread.high, spread.rows, spread.systems) == (0.9, 1.2, 2, 1)
    calibrate.write_calibration(frame([0.8, 1.2]), path)
    assert yaml.safe_load(path.read_text())["kinds"]["training"]["low"] == 0.8


def test_the_page_has_every_part_and_no_placeholder():
    text = accuracy_text(frame([0.9, 1.2]), "accuracy.png")
    assert "<!--" not in text and "](accuracy.png)" in text and "| training | step_time_s |" in text
    assert "a100-80gb-sxm" in text and "`sustained_flop_per_s.bf16`" in text


def test_the_page_of_nothing_predicted():
    nothing = frame_of([Row("rl", "r", "step_time_s", 1.0, reason="no GPU")])
    assert "no GPU" in accuracy_text(nothing, "x.png")
