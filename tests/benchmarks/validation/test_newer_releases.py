"""Protects intervals of rows whose release came after everything that the constants know: they are wider."""

import pandas as pd
import pytest

from benchmarks.validation.ablation import PUBLISHED
from benchmarks.validation.calibrate import with_intervals
from benchmarks.validation.committed import FILE
from benchmarks.validation.newer_releases import SPREAD, is_newer, spread_of, widened


@pytest.mark.parametrize(
    ("release", "newer"),
    [
        ("nemo rl v0.7.0 vllm", False),
        ("nemo rl v0.8.0 vllm", True),
        ("nemo rl v0.7.0 vllm 0.40.0", True),
        ("megatron bridge v0.6.1", False),
        ("megatron bridge v1.0.0", True),
        ("verl v1 separate async, method nccl full broadcast", False),  # its trainer's name, not a release
        ("skyrl vllm", False),
        ("", False),
    ],
)
def test_a_release_after_all_rows_is_told_from_others(release, newer):
    assert is_newer(f"qwen3 8b | h100-80gb-sxm | {release}") == newer


def test_no_row_that_ships_has_one():
    assert not [family for family in pd.read_csv(FILE)["family"].fillna("") if is_newer(family)]


def test_it_widens_either_side_by_what_releases_differ():
    new, old = "m | d | nemo rl v0.9.0", "m | d | nemo rl v0.6.0"
    assert widened(0.7, new) < 0.7 and widened(1.3, new) > 1.3
    assert widened(0.7, old) == 0.7 and widened(1.3, old) == 1.3
    assert widened(1.0, new) == pytest.approx(1.24, abs=0.01), "alone, nine releases in ten lie within"


def test_the_spread_is_that_of_published_releases():
    assert spread_of(pd.read_csv(PUBLISHED / "training.csv", dtype=str)) == pytest.approx(SPREAD, abs=0.005)


def test_a_report_has_it_in_its_columns():
    row = {
        "table": "rl",
        "quantity": "step_time_s",
        "model_kind": "moe",
        "schedule": "sync",
        "device": "gb200",
        "system": "",
    }
    rows = [row | {"predicted": 100.0, "family": f"m | gb200 | nemo rl v0.{minor}.0"} for minor in (6, 9)]
    known, newer = with_intervals(pd.DataFrame(rows)).to_dict(orient="records")
    assert newer["low"] < known["low"] < 100 < known["high"] < newer["high"]
