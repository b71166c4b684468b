"""Protects the compute of a layer: GEMM sizes and traffic by hand, and that splitting a layer splits its work."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.models.shape import ModelShape
from simulator.cost import compute
from simulator.cost.compute import Batch
from tests.builders import MOE, TINY, make_facts

ONE = np.asarray([1], dtype=np.int64)
LLAMA = load_model("llama-2-7b")


def batch(tokens: float = 4096.0, length: float = 1024.0) -> Batch:
    return Batch(np.asarray([tokens]), np.asarray([tokens / length]), np.asarray([length]))


def test_elementwise_traffic_of_llama_by_hand() -> None:
    """(10 h + 2 (q + kv) + 3 f) x 2 bytes, over t."""
    by_hand = 2 * (10 * 4096 + 2 * (4096 + 4096) + 3 * 11008)
    assert compute.elementwise_bytes_per_token(LLAMA, np.asarray([1, 8])).tolist() == [by_hand, by_hand / 8]


def test_elementwise_traffic_of_an_moe_counts_the_experts_a_token_visits() -> None:
    shape = load_model(MOE)
    assert shape.moe is not None
    width = shape.moe.experts_per_token * shape.moe.expert_ffn + shape.moe.shared_ffn
    dense = replace(shape, moe=None, ffn=width)
    assert compute.elementwise_bytes_per_token(shape, ONE) == compute.elementwise_bytes_per_token(dense, ONE)


@pytest.mark.parametrize("shape", [LLAMA, load_model("qwen2.5-7b"), TINY], ids=lambda s: s.name)
def test_a_layer_on_more_ranks_is_faster_but_not_more_than_so_many_times(shape: ModelShape) -> None:
    facts = make_facts()
    tp = np.asarray([1, 2, 4], dtype=np.int64)
    wide = Batch(*(np.repeat(x, 3) for x in (batch().tokens, batch().sequences, batch().length)))
    layer = compute.dense_layer(facts, shape, wide, tp, np.ones_like(tp))
    for part in (layer.forward.s, layer.backward.s):
        assert part[0] > part[1] > part[2]
        assert np.all(part * tp >= 0.8 * part[0])


def test_backward_is_about_twice_forward() -> None:
    layer = compute.dense_layer(make_facts(), LLAMA, batch(), ONE, ONE)
    assert 1.7 < layer.backward.s[0] / layer.forward.s[0] < 2.6
    parts = layer.backward_input.s + layer.backward_weight.s + layer.backward_other.s
    assert layer.backward.s == pytest.approx(parts)


def test_a_layer_runs_near_the_roofline() -> None:
    """Utilisation of one forward layer at 8192 tokens: between 40 and 100 % of the A100's dense bf16 peak."""
    facts = make_facts()
    flop = 2 * 8192 * (LLAMA.attention_params + LLAMA.dense_params // LLAMA.num_layers)
    seconds = compute.dense_layer(facts, LLAMA, batch(8192.0), ONE, ONE).forward.s[0]
    assert 0.4 < flop / seconds / facts.device.spec.peak("bf16") < 1.0


def test_eager_elementwise_traffic_of_llama_by_hand() -> None:
    """Two norms of 34 bytes and two residuals of 6 per element, 20 per query and key element, 10 of the activation."""
    by_hand = (2 * 34 + 2 * 6) * 4096 + 20 * (4096 + 4096) + 10 * 11008
    assert compute.elementwise_bytes_per_token(LLAMA, np.asarray([1, 8]), "eager").tolist() == [by_hand, by_hand / 8]


def test_attention_backward_is_derived_and_says_so() -> None:
    """No table holds the backward kernel: whatever the forward price rests on, the backward one is analytic."""
    facts = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16", generation="vllm@0.32")
    layer = compute.dense_layer(facts, load_model("llama-3.1-8b"), batch(4096, 4096), ONE, ONE)
    assert layer.backward_other.share()["analytic"] == 1.0
    assert layer.forward.share()["analytic"] < 1.0


def test_a_hybrid_layer_is_the_mean_of_its_mixers() -> None:
    """Three gated delta nets to one attention layer: their kernels grow with the tokens, not with the length."""
    facts = make_facts(device="h100-80gb-sxm")
    hybrid = load_model("qwen3.5-9b")
    full = replace(hybrid, linear=None, num_linear_layers=0)
    growth = {}
    for name, shape in (("hybrid", hybrid), ("full", full)):
        short, long = (compute.dense_layer(facts, shape, batch(65536.0, s), ONE, ONE) for s in (2048.0, 65536.0))
        growth[name] = (long.forward.s[0] / short.forward.s[0], long.backward.s[0] / short.backward.s[0])
    assert all(
        0.0 < hybrid_s - 1.0 < (full_s - 1.0) / 2
        for hybrid_s, full_s in zip(growth["hybrid"], growth["full"], strict=True)
    )
    experts = compute.attention_layer(facts, load_model("qwen3.5-397b-a17b"), batch(), 8 * ONE, ONE)
    assert experts.forward.s[0] > 0
