"""Protects sizes of matrix products: they hold every weight of a layer, and heads that ranks share out or repeat."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_known, load_model
from simulator.cost.gemm_sizes import attention_gemms, attention_products, mlp_gemms
from tests.builders import TINY

ONE = np.asarray([1])
LLAMA = load_model("llama-2-7b")


def weights(sizes: list[tuple[np.ndarray, np.ndarray]]) -> float:
    return sum(float((np.asarray(n) * k)[0]) for n, k in sizes)


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-2-70b", "qwen2.5-7b", "deepseek-v3"])
def test_attention_gemms_hold_every_projection_weight(model: str) -> None:
    shape = load_model(model)
    biases = shape.q_width + 2 * shape.kv_width if shape.qkv_bias else 0
    assert weights(attention_gemms(shape, ONE)) == shape.attention_params - biases


def test_kv_heads_are_replicated_when_ranks_outnumber_them() -> None:
    few = replace(TINY, num_kv_heads=2)
    (qkv_two, _), _ = attention_gemms(few, 2 * ONE)
    (qkv_four, _), _ = attention_gemms(few, 4 * ONE)
    assert qkv_two[0] == few.q_width / 2 + 2 * few.head_dim
    assert qkv_four[0] == few.q_width / 4 + 2 * few.head_dim


@pytest.mark.parametrize("gated", [True, False])
def test_mlp_gemms_hold_every_weight(gated: bool) -> None:
    shape = replace(LLAMA, gated_mlp=gated)
    assert shape.num_layers * weights(mlp_gemms(shape, np.asarray([float(shape.ffn)]))) == shape.dense_params


@pytest.mark.parametrize("model", ["google/gemma-4-31B", "nvidia/MiniMax-M3-NVFP4", "Qwen/Qwen3-8B"])
def test_kinds_of_attention_layers_hold_every_projection_weight_together(model: str) -> None:
    shape = load_known(model)
    kinds = attention_products(shape, ONE)
    assert sum(share for _, share in kinds) == pytest.approx(1.0)
    held = shape.num_attention_layers * sum(share * weights(sizes) for sizes, share in kinds)
    norms = shape.sparse.num_layers * 2 * shape.sparse.index_head_dim if shape.sparse else 0
    assert held == pytest.approx(shape.mixer_params - norms)
