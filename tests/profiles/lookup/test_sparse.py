"""Protects prices of sparse attention modules: grid points, which model, and what the picked tokens save."""

import numpy as np
import pytest

from profiles.lookup.table import read_card, read_table
from profiles.store import DATA, load_device


@pytest.mark.parametrize(("phase", "size"), [("decode", "context"), ("prefill", "seq")])
def test_a_measured_size_has_its_measured_time(phase: str, size: str) -> None:
    device, name = load_device("h200-sxm"), f"sparse_{phase}"
    folder = DATA / "h200-sxm"
    table = read_table(folder / f"{name}.parquet", read_card(folder / f"{name}.yaml"))
    rows = table.split("kind", "indexer", "kv_dtype", "dtype", "heads")[
        ("deepseek_v32", "full", "fp8", "fp8_block", 16)
    ]
    batch, length, latency = table.columns(rows, "batch", size, "latency_s")
    found = device.sparse_attention(phase, (batch, length, 16), 7168, "fp8_block", "fp8")
    assert np.allclose(found.s, latency, rtol=1e-3)


def test_long_contexts_cost_less_than_reading_them_all() -> None:
    device = load_device("h200-sxm").of_engine("sglang", "0.5.14")
    short, long = device.sparse_attention(
        "decode", (64.0, np.asarray([4096.0, 32768.0]), 16), 7168, "fp8_block", "bf16"
    ).s
    assert long < 4 * short


def test_a_model_that_nobody_measured_has_none() -> None:
    assert load_device("h200-sxm").has_sparse(7168)
    assert not load_device("h200-sxm").has_sparse(4096)
    assert not load_device("a100-80gb-sxm").has_sparse(7168)
