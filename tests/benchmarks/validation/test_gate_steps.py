"""Protects the gate on steps: what a row of training or RL cannot have measured is named, and published rows pass."""

from typing import Any

import pandas as pd
import pytest

from benchmarks.validation import rl, training
from benchmarks.validation.gate import GATE
from benchmarks.validation.report import REPEATS
from benchmarks.validation.tables import read_tables
from tests.benchmarks.validation.conftest import PUBLISHED
from tests.benchmarks.validation.test_training import CELLS

RATES = {"tokens_per_s_per_gpu": None, "tflops_per_gpu": None}


def reasons(**changes: Any) -> set[str]:
    rows = training.predict(pd.DataFrame([CELLS | changes], dtype=object))
    assert all(row.predicted is None for row in rows)
    return {row.reason for row in rows}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_tp": "3", "train_pp": "1", "num_gpus": "12"}, "3 ranks do not divide 32 heads"),
        ({"step_time_s": "0.1", **RATES}, "262,144 tokens in 0.1 s imply"),
        ({"step_time_s": None, "tokens_per_s_per_gpu": "900000"}, "TFLOP/s a GPU of 1,978"),
        (
            {"model": "meta-llama/Llama-3.1-405B", "train_tp": "2", "train_pp": "1", "num_gpus": "2"},
            "exceed its 79 GiB",
        ),
        (
            {"model": "Qwen/Qwen3-30B-A3B", "train_tp": "1", "train_pp": "1", "train_ep": "3", "num_gpus": "24"},
            "3 groups do not divide 128 experts",
        ),
    ],
)
def test_a_training_step_that_cannot_be_is_said_with_its_numbers(changes: dict[str, Any], words: str) -> None:
    (found,) = reasons(**changes)
    assert found.startswith(GATE) and words in found, found


@pytest.mark.parametrize(
    ("changes", "start", "words"),
    [
        ({"step_time_s": 0.5, "tokens_per_s_per_gpu": None}, GATE, "TFLOP/s a GPU of"),
        (
            {"train_tp": 3, "train_pp": 1, "num_gpus": 24, "train_gpus": 24, "gen_gpus": 24},
            "the plan that the row states cannot run: actor training: ",
            "cannot be split 3 ways",
        ),
    ],
)
def test_a_step_of_rl_that_cannot_be_is_said_with_its_numbers(changes: dict[str, Any], start: str, words: str) -> None:
    table = read_tables("rl", [PUBLISHED / "rl_steps.csv"])
    (row,) = table[table["id"] == "nemorl-v0.5-01"].to_dict(orient="records")
    rows = rl.predict(pd.DataFrame([row | changes]))
    assert rows and all(one.predicted is None for one in rows)
    for one in rows:
        assert one.reason.startswith(start) and words in one.reason, one.reason


def test_a_copy_of_a_row_is_no_second_measurement() -> None:
    both = training.predict(pd.DataFrame([CELLS, CELLS | {"id": "again", "notes": "copied"}], dtype=object))
    assert {row.reason for row in both if row.id == "again"} == {f"{REPEATS}t in every number"}
    assert all(row.predicted is not None for row in both if row.id == "t")
