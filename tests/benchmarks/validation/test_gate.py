"""Protects the gate: what a row cannot have measured is named, and what it can passes."""

from typing import Any

import pandas as pd
import pytest

from benchmarks.validation.gate import GATE, contradicted, duplicates
from benchmarks.validation.generation import predict
from benchmarks.validation.report import frame_of, level_a
from benchmarks.validation.rows import Row
from tests.benchmarks.validation.test_generation import ROW


def reasons(*rows: dict[str, Any]) -> list[str]:
    table = pd.DataFrame([{**ROW, "id": f"r{i}", **row} for i, row in enumerate(rows)])
    return [row.reason for row in predict(table) if row.predicted is None]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_gpus": 12}, "12 GPUs are not the engine's 4"),
        ({"tp": 3, "num_gpus": 3}, "3 ranks do not divide 64 heads"),
        ({"model": "Qwen/Qwen3-30B-A3B", "tp": 6, "num_gpus": 6, "moe_ep": 3, "attention_dp": 3}, "do not divide 128"),
        ({"model": "meta-llama/Llama-3.1-405B", "tp": 4}, "weights of 189 GiB a GPU exceed its 79 GiB"),
        ({"tpot_ms": 1.0, "ttft_ms": None}, "would read weights at over 13.4 TB/s"),
        (
            {"tpot_ms": None, "ttft_ms": None, "concurrency": None, "row_kind": "offline throughput"}
            | {"output_len": 32768, "throughput_tokens_per_s": 12000, "num_requests": 512},
            "TB/s of cache beside",
        ),
        ({"throughput_tokens_per_s": 1e6}, "1,000,000 tokens/s imply 65,524 TFLOP/s of 3,956"),
    ],
)
def test_what_cannot_be_is_said_with_its_numbers(changes: dict[str, Any], words: str) -> None:
    found = reasons(changes)
    assert found
    assert all(reason.startswith(GATE) and words in reason for reason in found), found


def test_a_row_that_can_be_passes() -> None:
    assert reasons({}) == []


def test_rows_that_repeat_another_in_every_number_are_left_out() -> None:
    found = reasons({}, {"notes": "the same run, listed twice"}, {"tpot_ms": 11.5})
    assert set(found) == {"gate: repeats r0 in every number"}
    rounded = reasons({"tpot_ms": 11.5}, {"tpot_ms": 11.4999}, {"tpot_ms": 11.49})
    assert set(rounded) == {"gate: repeats r0 in every number"}
    table = pd.DataFrame([{"id": "a", "x": 1.0}, {"id": "b", "x": 1.0}, {"id": "c", "x": 2.0}])
    assert list(duplicates(table)) == ["b"]


def test_of_rows_that_contradict_each_other_the_one_with_most_against_it_is_left_out() -> None:
    tpot = {4: 10.0, 8: 12.0, 16: 64.0, 32: 22.0, 64: 32.0}
    rows = [{**ROW, "id": f"c{c}", "concurrency": c, "tpot_ms": t, "ttft_ms": 100.0 + c} for c, t in tpot.items()]
    assert list(contradicted(pd.DataFrame(rows))) == ["c16"]
    slow = {4: 4.0, 8: 4.7, 16: 5.8, 32: 15.9, 64: 9.7}
    rows_of = [{**ROW, "id": f"c{c}", "concurrency": c, "tpot_ms": t} for c, t in slow.items()]
    assert list(contradicted(pd.DataFrame(rows_of))) == ["c32"], "too slow for 64, and for twice what 16 take"
    pair = pd.DataFrame([row for row in rows if row["id"] in ("c16", "c32")])
    assert contradicted(pair) == {}, "of a single pair nobody knows which is wrong"
    assert contradicted(pd.DataFrame(rows).drop(columns="tpot_ms")) == {}


def test_a_repeated_row_counts_once_among_complete_configurations():
    rows = [
        Row("generation", "a", "tpot_ms", 1.0, 1.0, level="A"),
        Row("generation", "b", "tpot_ms", 1.0, level="A", reason="gate: repeats a in every number"),
        Row("generation", "c", "tpot_ms", 1.0, level="A", reason="gate: 3 ranks do not divide 64 heads"),
    ]
    assert level_a(frame_of(rows)) == [{"table": "generation", "rows": 2, "predicted": 1, "coverage": 0.5}]
