"""Protects the estimate that every error stands beside: it is the line of arithmetic that it says."""

import pytest

from benchmarks.validation.naive import decode_step_s, passes_s
from profiles.models.catalogue import load_model
from profiles.store import load_device

H100 = load_device("h100-80gb-sxm").spec


def test_six_n_t_at_forty_percent():
    shape = load_model("qwen3-8b")
    tokens, gpus = 1e6, 8
    assert passes_s(H100, shape, tokens, gpus) == pytest.approx(
        6 * shape.active_params_per_token * 1e6 / (0.4 * 989e12 * 8), rel=0.01
    )


def test_decode_reads_weights_and_cache():
    shape = load_model("llama-3.1-8b")
    one = decode_step_s(H100, shape, 1, 1, 0.0)
    assert one == pytest.approx(2 * shape.num_params / H100.memory_bytes_per_s)
    cache = decode_step_s(H100, shape, 1, 64, 1000.0) - decode_step_s(H100, shape, 1, 64, 0.0)
    assert cache == pytest.approx(64 * 1000 * 2 * 2 * 8 * 128 * 32 / H100.memory_bytes_per_s)


def test_few_tokens_touch_few_experts():
    shape = load_model("qwen3-30b-a3b")
    few, many = (decode_step_s(H100, shape, 1, n, 0.0) * H100.memory_bytes_per_s / 2 for n in (1, 10_000))
    assert few == pytest.approx(shape.active_params_per_token, rel=0.1)
    assert many == pytest.approx(shape.num_params, rel=0.01)
