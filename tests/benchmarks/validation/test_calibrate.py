"""Protects the intervals from optimism: left-out predictions alone, families apart, few rows lean on neighbours."""

import numpy as np
import pandas as pd
import pytest
import yaml

from benchmarks.validation import accuracy, calibrate
from benchmarks.validation.accuracy import accuracy_text
from benchmarks.validation.headline import headline
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row
from simulator.uncertainty import interval, load_calibration


def frame(ratios, system="a", device="b200-sxm", kind="dense", **how):
    """Training rows, each a family, whose measured over predicted time is as given."""
    where = {"system": system, "device": device, "model_kind": kind, "level": "A", **how}
    rows = [
        Row("training", f"{system}{i}", "step_time_s", 100.0 * ratio, 100.0, family=f"{system}{i} | d | r", **where)
        for i, ratio in enumerate(ratios)
    ]
    return frame_of(rows)


def test_predictions_of_left_out_families_count_and_no_others():
    rows = frame([1.1, 1.2]).assign(left_out=[50.0, 120.0])
    assert calibrate.residuals(rows)["size"].tolist() == pytest.approx([np.log(2.2), 0.0], abs=1e-9)
    assert calibrate.residuals(frame([1.1], level="C")).empty


def test_a_rate_beside_a_time_does_not_count_twice():
    rows = [
        Row("training", "x", q, m, p, level="A", model_kind="dense", device="gb200", family="f")
        for q, m, p in (("step_time_s", 9.0, 10.0), ("tokens_per_s_per_gpu", 100.0, 80.0), ("peak_mem_gib", 1.0, 2.0))
    ]
    assert calibrate.residuals(frame_of(rows))["cluster"].tolist() == ["training/dense/blackwell", "memory/dense"]


def test_nine_of_ten_lie_inside_and_a_small_cluster_leans_on_its_neighbours():
    many = frame(np.exp(np.linspace(0.0, 0.4, 41)))
    alone = calibrate.half_width(calibrate.residuals(many), "training/dense/blackwell")
    assert alone == pytest.approx(0.37, abs=0.02)
    few = frame([1.01, 1.02], system="few", device="h100-80gb-sxm")
    both = calibrate.residuals(pd.concat([many, few], ignore_index=True))
    assert calibrate.half_width(both, "training/dense/hopper") > 0.3
    assert calibrate.half_width(both, "training/dense/blackwell") == pytest.approx(alone, abs=0.03)


def test_a_device_without_tables_says_nothing_of_others():
    both = calibrate.residuals(
        pd.concat([frame([1.1] * 9), frame([3.0] * 9, device="mi300x-192gb")], ignore_index=True)
    )
    assert calibrate.half_width(both, "training/dense/blackwell") == pytest.approx(np.log(1.1))
    assert calibrate.half_width(both, "training/dense/other") == pytest.approx(np.log(3.0))


def test_devices_without_tables_lean_on_each_other_whatever_was_measured():
    both = calibrate.residuals(
        pd.concat([frame([1.1] * 12), frame([3.0] * 9, system="x", device="mi300x-192gb", kind="moe")])
    )
    assert calibrate.half_width(both, "training/dense/other") == pytest.approx(np.log(3.0))
    assert calibrate.half_width(both, "rl/dense/sync/other") == pytest.approx(np.log(3.0))


def test_the_largest_error_of_few_families_is_not_the_largest_to_come():
    for families, beyond in calibrate.BEYOND.items():
        draws = np.abs(np.random.default_rng(0).standard_normal((200_000, families + 1)))
        inside = draws[:, 0] <= beyond * draws[:, 1:].max(axis=1)
        assert inside.mean() == pytest.approx(calibrate.COVERAGE, abs=0.004)
    few = calibrate.residuals(frame([1.2] * 3))
    assert calibrate.half_width(few, "training/dense/blackwell") == pytest.approx(1.667 * np.log(1.2))


def test_a_stage_leans_on_whole_iterations():
    where = {"level": "A", "model_kind": "dense", "schedule": "sync", "device": "b200-sxm"}
    rows = [Row("rl", f"s{i}", "step_time_s", 1.0, 1.3, family=f"s{i} | d | r", **where) for i in range(9)]
    rows += [Row("rl", "x", "train_time_s", 1.0, 1.1, family="x | d | r", **where)]
    found = calibrate.residuals(frame_of(rows))
    assert calibrate.half_width(found, "stage/train_time_s/dense/blackwell") == pytest.approx(np.log(1.3))
    assert calibrate.half_width(found[found["id"] == "x"], "rl/dense/sync/blackwell") == float("inf")


def test_every_family_of_devices_has_a_range_where_one_has():
    known = calibrate.calibrated(frame(np.linspace(0.9, 1.2, 12)))
    here, elsewhere = known["training/dense/blackwell"], known["training/dense/hopper"]
    assert elsewhere["rows"] == 12, "those that it leans on"
    assert elsewhere["high"] >= here["high"], "no narrower than where rows are"


def test_runs_of_the_paper_are_held_against_those_of_other_models():
    rows = [
        Row("paper", f"fig9:{7 * (1 + i % 2)}B:{i}", "iteration_s", 1.0, 1.1, figure="fig9", system="a", family="")
        for i in range(20)
    ]
    (line,) = calibrate.coverage(frame_of(rows))
    assert line["families"] == 2 and np.isfinite(line["high over low"])


def test_coverage_is_by_the_rows_of_other_families():
    (line,) = calibrate.coverage(pd.concat([frame([1.0] * 9), frame([2.0], system="b")], ignore_index=True))
    assert line["inside"] == 0.9 and line["rows"] == 10
    assert line["bias"] < 0, "what took longer than predicted was predicted too fast"


def test_a_cluster_of_few_families_has_the_range_of_the_one_around_it_and_is_judged_there():
    few = frame([1.0, 3.0], system="few", device="h100-80gb-sxm")
    rows = pd.concat([frame([1.0, 1.3] * 7), few], ignore_index=True)
    around, own = calibrate.coverage(rows)
    assert (own["cluster"], own["rows"], own["for"]) == ("training/dense/blackwell", 14, "")
    assert (around["cluster"], around["rows"]) == ("training/dense", 16)
    assert around["for"] == "training/dense/hopper"
    assert around["inside"] == pytest.approx(15 / 16), "each by the range that it is given"
    found = calibrate.calibrated(rows)
    assert (found["training/dense/hopper"]["of"], found["training/dense/hopper"]["rows"]) == ("training/dense", 16)
    assert found["training/dense/hopper"]["high"] >= found["training/dense"]["high"]
    assert "of" not in found["training/dense/blackwell"]


def test_the_file_keeps_what_is_declared(tmp_path):
    path = tmp_path / "uncertainty.yaml"
    path.write_text("# why\nhalf_width:  # by evidence\n  measured: 0.05\nclusters: {}\n")
    calibrate.write_calibration(frame([0.9, 1.2]), path)
    assert path.read_text().startswith("# why\nhalf_width:  # by evidence\n  measured: 0.05\n")
    found = load_calibration(path).clusters["training/dense"]
    assert (found.rows, found.families) == (2, 2) and found.low * found.high == pytest.approx(1.0, abs=1e-3)
    assert set(yaml.safe_load(path.read_text())["clusters"]) == {
        "training",
        "training/dense",
        "training/dense/blackwell",
        "training/dense/hopper",
        "training/dense/ampere",
        "training/dense/pcie",
    }


def test_every_prediction_has_its_interval():
    found = calibrate.with_intervals(frame([0.9, 1.2]))
    assert (found["low"] < found["predicted"]).all() and (found["predicted"] < found["high"]).all()


def test_a_row_priced_by_rule_is_as_wide_as_a_plan_of_it():
    """Memory is not: it is counted, whatever its kernels are priced by."""
    found = calibrate.with_intervals(frame([1.0, 1.0]).assign(by_rule=[0.0, 0.5]))
    path = "training/dense/blackwell"
    assert found[["low", "high"]].to_numpy() / 100 == pytest.approx(np.array([interval(path), interval(path, 0.5)]))
    held = frame([1.0, 1.0]).assign(by_rule=[0.0, 0.5], quantity="peak_mem_gib")
    assert calibrate.with_intervals(held)["low"].nunique() == 1


@pytest.fixture(scope="module")
def page():
    """The page looks up every point of every table without itself; two devices are enough to see the parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accuracy, "device_names", lambda: ("a100-80gb-sxm", "h100-80gb-sxm"))
        return accuracy_text(frame([0.9, 1.2]), "accuracy.png")


def test_the_page_has_every_part_and_no_placeholder(page):
    assert "<!--" not in page and "](accuracy.png)" in page and "| training | step_time_s |" in page
    assert "a100-80gb-sxm" in page and "`sustained_flop_per_s.bf16`" in page


def test_the_page_begins_with_one_short_table_and_the_picture(page):
    lines = page.splitlines()
    first = lines.index("![Predicted over measured](accuracy.png)")
    assert sum(line.startswith("|") for line in lines[:first]) <= 2 + 6
    assert any(line.startswith("| step of training, s |") for line in lines[:first])


def test_a_line_of_the_headline_weighs_kinds_by_their_rows():
    lines = [
        {
            "table": "rl",
            "quantity": "step_time_s",
            "model_kind": kind,
            "rows": rows,
            "mean": 0.1,
            "worst": worst,
            "naive": n,
        }
        for kind, rows, worst, n in (("dense", 1, 0.3, 0.2), ("moe", 3, 0.5, 0.6))
    ]
    (line,) = headline(lines)
    assert list(line.values()) == ["step of RL, s", 4, "10%", "10%", "50%", "50%"]


def test_the_page_of_nothing_predicted(monkeypatch):
    monkeypatch.setattr(accuracy, "device_names", lambda: ("a100-80gb-sxm",))
    nothing = frame_of([Row("rl", "r", "step_time_s", 1.0, reason="no GPU")])
    assert "no GPU" in accuracy_text(nothing, "x.png")
