"""Protects the compute of a layer: GEMM sizes and traffic by hand, and that splitting a layer splits its work."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.catalogue import load_model
from profiles.model_shape import ModelShape
from simulator import compute
from simulator.compute import Batch
from simulator.facts import Implementation
from tests.builders import MOE, TINY, make_facts

ONE = np.asarray([1], dtype=np.int64)
LLAMA = load_model("llama-2-7b")


def weights(gemms: list[tuple[np.ndarray, np.ndarray]]) -> float:
    return sum(float((np.asarray(n) * k)[0]) for n, k in gemms)


def batch(tokens: float = 4096.0, length: float = 1024.0) -> Batch:
    return Batch(np.asarray([tokens]), np.asarray([tokens / length]), np.asarray([length]))


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-2-70b", "qwen2.5-7b", "deepseek-v3"])
def test_attention_gemms_hold_every_projection_weight(model: str) -> None:
    shape = load_model(model)
    biases = shape.q_width + 2 * shape.kv_width if shape.qkv_bias else 0
    assert weights(compute.attention_gemms(shape, ONE)) == shape.attention_params - biases


def test_kv_heads_are_replicated_when_ranks_outnumber_them() -> None:
    few = replace(TINY, num_kv_heads=2)
    (qkv_two, _), _ = compute.attention_gemms(few, 2 * ONE)
    (qkv_four, _), _ = compute.attention_gemms(few, 4 * ONE)
    assert qkv_two[0] == few.q_width / 2 + 2 * few.head_dim
    assert qkv_four[0] == few.q_width / 4 + 2 * few.head_dim


@pytest.mark.parametrize("gated", [True, False])
def test_mlp_gemms_hold_every_weight(gated: bool) -> None:
    shape = replace(LLAMA, gated_mlp=gated)
    assert weights(compute.mlp_gemms(shape, np.asarray([float(shape.ffn)]))) == shape.dense_mlp_params


def test_long_dense_work_is_held_to_the_sustained_rate_and_short_work_is_not() -> None:
    facts = make_facts()
    n, k = np.asarray([8192.0]), np.asarray([8192.0])
    for rows in (1.0, 64.0, 16384.0):
        table = facts.device.gemm(rows, n, k).s[0]
        floor = 2 * rows * 8192**2 / facts.device.spec.sustained("bf16")
        short, long = (
            compute.run_gemms(facts, np.asarray([rows]), [(n, k)], "bf16", how).s[0] for how in (False, True)
        )
        assert short == pytest.approx(table)
        assert long == pytest.approx(facts.training.gemm_ratio * max(table, floor))


def test_backward_gemms_are_the_two_transposed_ones() -> None:
    facts = make_facts()
    n, k, rows = np.asarray([11008.0]), np.asarray([4096.0]), np.asarray([1000.0])
    inputs, into_weights = compute.run_gemms_backward(facts, rows, [(n, k)])
    assert inputs.s == pytest.approx(compute.run_gemms(facts, rows, [(k, n)], "bf16", sustained=True).s)
    assert into_weights.s == pytest.approx(compute.run_gemms(facts, n, [(k, rows)], "bf16", sustained=True).s)


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


def test_attention_grows_with_the_square_of_the_length() -> None:
    facts = make_facts()
    short, long = (compute.attention_forward(facts, LLAMA, batch(32768.0, s), ONE, ONE).s[0] for s in (2048.0, 16384.0))
    assert 5 < long / short < 10  # equal tokens: 8 times the work
    halves = compute.attention_forward(facts, LLAMA, batch(), ONE, 2 * ONE).s
    assert halves * 2 == pytest.approx(compute.attention_forward(facts, LLAMA, batch(), ONE, ONE).s)


def test_a_layer_runs_near_the_roofline() -> None:
    """Utilisation of one forward layer at 8192 tokens: between 40 and 100 % of the A100's dense bf16 peak."""
    facts = make_facts()
    flop = 2 * 8192 * (LLAMA.attention_params + LLAMA.dense_mlp_params)
    seconds = compute.dense_layer(facts, LLAMA, batch(8192.0), ONE, ONE).forward.s[0]
    assert 0.4 < flop / seconds / facts.device.spec.peak("bf16") < 1.0


def test_loss_heads_differ_as_their_implementations_do() -> None:
    facts, tokens = make_facts(), np.asarray([4096.0])
    plain, fused, fp32 = (
        compute.vocabulary_head(replace(facts, implementation=Implementation(loss_head=kind)), LLAMA, tokens, ONE)
        for kind in ("parallel", "fused", "fp32")
    )
    gemm = [(np.asarray([32000.0]), np.asarray([4096.0]))]
    projection = compute.run_gemms(facts, tokens, gemm, "bf16", sustained=True).s
    assert fused[0].s == plain[0].s
    assert fused[1].s == pytest.approx(plain[1].s + projection)
    assert fp32[0].s > 2 * plain[0].s


def test_flash_2_is_slower_only_where_the_tables_hold_a_later_kernel() -> None:
    older = Implementation(attention_kernel="flash-2")
    for device, slower in (("a100-80gb-sxm", False), ("h100-80gb-sxm", True)):
        facts = make_facts(device=device)
        newest = compute.dense_layer(facts, LLAMA, batch(), ONE, ONE)
        flash_2 = compute.dense_layer(replace(facts, implementation=older), LLAMA, batch(), ONE, ONE)
        assert bool(flash_2.forward.s[0] > newest.forward.s[0]) is slower
        assert bool(flash_2.backward.s[0] > newest.backward.s[0]) is slower


def test_attention_backward_is_derived_and_says_so() -> None:
    """No table holds the backward kernel: whatever the forward price rests on, the backward one is analytic."""
    facts = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16", generation="vllm@0.32")
    layer = compute.dense_layer(facts, load_model("llama-3.1-8b"), batch(4096, 4096), ONE, ONE)
    assert layer.backward_other.share()["analytic"] == 1.0
    assert layer.forward.share()["analytic"] < 1.0
