"""Protects the validation of inference rows: every quantity comes back, what cannot be predicted says why."""

from typing import Any

import pandas as pd
import pytest

from benchmarks.validation.generation import predict

ROW: dict[str, Any] = {
    "id": "a",
    "row_kind": "closed-loop serving at fixed concurrency",
    "spec_level": "B",
    "backend": "vLLM",
    "backend_version": "0.12.0",
    "gpu_kind": "H100-SXM-80GB",
    "num_gpus": 4,
    "model": "Qwen/Qwen3-32B",
    "precision": "BF16",
    "tp": 4,
    "pp": 1,
    "attention_dp": 1,
    "moe_tp": None,
    "moe_ep": None,
    "input_len": 1024,
    "output_len": 64,
    "concurrency": 8,
    "num_requests": None,
    "max_batch": 8,
    "throughput_tokens_per_s": None,
    "tokens_per_s_per_gpu": None,
    "ttft_ms": 130.0,
    "tpot_ms": 11.0,
    "notes": "",
}


def rows(**changes: Any) -> dict[str, Any]:
    """Quantity to (prediction, reason) of one row."""
    found = predict(pd.DataFrame([{**ROW, **changes}]))
    return {row.quantity: (row.predicted, row.reason) for row in found}


def test_latencies_and_their_sum() -> None:
    found = predict(pd.DataFrame([ROW]))
    values = {row.quantity: row.predicted for row in found}
    assert set(values) == {"ttft_ms", "tpot_ms", "latency_sum_ms"}
    assert values["latency_sum_ms"] == pytest.approx(values["ttft_ms"] + 63 * values["tpot_ms"])
    assert {(row.device, row.model_kind, row.system) for row in found} == {("h100-80gb-sxm", "dense", "vLLM")}
    assert next(r for r in found if r.quantity == "latency_sum_ms").measured == pytest.approx(130 + 63 * 11)


def test_throughput_where_there_is_no_latency() -> None:
    offline = {
        "ttft_ms": None,
        "tpot_ms": None,
        "row_kind": "offline throughput",
        "backend": "TensorRT-LLM",
        "backend_version": "0.10.0",
        "num_requests": 200,
        "throughput_tokens_per_s": 1000.0,
        "tokens_per_s_per_gpu": 250.0,
        "concurrency": None,
        "max_batch": 64,
    }
    found = rows(**offline)
    assert set(found) == {"throughput_tokens_per_s", "tokens_per_s_per_gpu"}
    assert found["throughput_tokens_per_s"][0] > 0
    assert rows(**{**offline, "throughput_tokens_per_s": None})["tokens_per_s_per_gpu"][0] == pytest.approx(
        found["throughput_tokens_per_s"][0] / 4
    )
    static = rows(**{**offline, "row_kind": "static batch", "backend_version": "0.6.1", "concurrency": 64})
    assert static["throughput_tokens_per_s"][0] > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_kind": "V100"}, "no operator tables for V100"),
        ({"gpu_kind": None}, "does not name the GPU"),
        ({"model": "Some-New-Model-9T"}, "no architecture known"),
        ({"row_kind": "disaggregated serving"}, "engines of their own"),
        ({"precision": "INT8"}, "no operator tables in INT8"),
        ({"precision": "ternary"}, "not known"),
        ({"backend": "LMDeploy"}, "no facts of the engine"),
        ({"concurrency": None, "max_batch": None}, "in flight is not stated"),
        ({"concurrency": "many"}, "no whole number"),
        ({"input_len": None}, "lengths of prompt and response"),
        ({"output_len": "?"}, "lengths of prompt and response"),
        ({"tp": "x"}, "no whole number"),
        ({"moe_ep": 3}, "do not divide"),
        ({"tp": 1, "num_gpus": 1, "input_len": 100_000, "tpot_ms": 60.0}, "one request needs"),
        ({"tp": 1, "num_gpus": 1, "model": "meta-llama/Llama-3.1-70B"}, "gate: weights of 131 GiB"),
        ({"ttft_ms": None, "tpot_ms": None}, "publishes no quantity"),
        ({"row_kind": "", "concurrency": None}, "neither a load nor a batch"),
    ],
)
def test_what_is_not_predicted_says_why(changes: dict[str, Any], reason: str) -> None:
    found = rows(**changes)
    assert found
    assert all(predicted is None and reason in why for predicted, why in found.values()), found
    assert not any("internal error" in why for _, why in found.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "Qwen/Qwen3-235B-A22B-FP8", "precision": "FP8", "tp": 8, "num_gpus": 8, "moe_tp": 1, "moe_ep": 8},
        {"model": "Qwen/Qwen3-235B-A22B", "precision": "FP8", "tp": 1, "attention_dp": 8, "num_gpus": 8, "moe_ep": 8},
        {"model": "Qwen/Qwen3-30B-A3B", "tp": 4, "attention_dp": 4, "num_gpus": 4, "moe_ep": 4, "concurrency": 32},
        {"tp": 2, "pp": 2},
        {"gpu_kind": "B200"},
        {"gpu_kind": "GB200"},
        {"gpu_kind": "H200"},
        {"gpu_kind": "A100-SXM-80GB"},
        {"model": "deepseek-ai/DeepSeek-V3", "precision": "FP8", "tp": 8, "num_gpus": 8, "gpu_kind": "H200"},
        {"tp": 16, "num_gpus": 16, "model": "meta-llama/Llama-3.1-405B", "tpot_ms": 40.0},
        {"backend": "SGLang", "backend_version": "0.5.9"},
        {"backend": "TRTLLM", "backend_version": "1.2.0rc6"},
        {"backend_version": None},
        {"precision": None},
        {"max_batch": None},
        {"num_gpus": None},
        {"row_kind": None},
    ],
)
def test_other_layouts_and_devices_are_predicted(changes: dict[str, Any]) -> None:
    found = rows(**changes)
    assert all(predicted is not None and predicted > 0 for predicted, _ in found.values()), found


def test_a_row_that_states_its_drafts_is_predicted_with_them() -> None:
    """Tokens come faster than weights can be read once each, which the gate holds against rows that state no drafts."""
    fast = {"tpot_ms": 3.0, "concurrency": 1, "max_batch": 1}
    assert "speculation that the row does not state" in rows(**fast)["tpot_ms"][1]
    drafted = rows(**fast, notes="EAGLE-3, draft length 4, acceptance length 3.2")["tpot_ms"]
    plain = rows(concurrency=1, max_batch=1)["tpot_ms"]
    assert drafted[0] and plain[0] and 0.3 < drafted[0] / plain[0] < 0.8


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "NVFP4"},
        {"precision": "INT4 (AWQ)"},
        {"precision": "FP8", "gpu_kind": "A100-SXM-80GB"},
        {"model": "deepseek-ai/DeepSeek-V3.2", "precision": "FP8", "gpu_kind": "B200", "tp": 8, "num_gpus": 8},
        {"model": "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "tp": 1, "num_gpus": 1},
        {"gpu_kind": "GH200-96GB"},
        {"gpu_kind": "RTX PRO 6000", "model": "Qwen/Qwen3-30B-A3B-FP8", "precision": "FP8", "tpot_ms": 20.0},
    ],
)
def test_formats_models_and_parts_beyond_the_published_rows_are_predicted(changes: dict[str, Any]) -> None:
    """What other tables of the kind hold: a format that the device does not compute in, sparse and Mamba layers."""
    value, reason = rows(**changes)["tpot_ms"]
    assert value is not None and 2.0 < value < 60.0, reason


def test_a_row_says_how_much_of_its_model_no_table_holds() -> None:
    linear = {"id": "b", "gpu_kind": "H200-SXM", "model": "moonshotai/Kimi-Linear-48B-A3B-Instruct"}
    found = predict(pd.DataFrame([ROW, {**ROW, **linear}]))
    assert {row.id: row.by_rule for row in found} == {"a": 0.0, "b": pytest.approx(20 / 54)}


def test_a_response_of_one_token_has_no_time_per_token() -> None:
    found = rows(output_len=1, tpot_ms=200.0, ttft_ms=300.0)
    assert found["ttft_ms"][0] is not None and found["latency_sum_ms"][0] == found["ttft_ms"][0]
    assert found["tpot_ms"][0] is None and "one token" in found["tpot_ms"][1]
