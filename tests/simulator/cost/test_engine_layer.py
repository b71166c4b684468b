"""Protects a layer of an inference engine: how it is split, what crosses nodes, and which cache kernels read."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost import engine_layer, generate
from simulator.facts import Facts
from simulator.plan.layouts import GenerationLayouts
from tests.builders import make_facts

MOE = load_model("qwen3-235b-a22b")
LLAMA = load_model("llama-3-70b")
ROWS = np.asarray([[64.0]])


def layouts(tp: int, *, pp: int = 1, ep: int = 1, copies: int = 1) -> GenerationLayouts:
    one = [np.asarray([x], dtype=np.int64) for x in (1, tp, pp, 256, ep, copies)]
    return GenerationLayouts(*one)


def h100(nodes: int = 1) -> Facts:
    return make_facts("grpo", device="h100-80gb-sxm", nodes=nodes, generation="vllm@0.12", inter_node_bytes_per_s=4e11)


def test_an_all_reduce_across_nodes_pays_the_network() -> None:
    """NCCL's time inside, its base latency and two hops of its tree, and the wire: far above the one-node table."""
    facts, num_bytes = h100(2), np.asarray([[64 * 8192 * 2.0]])
    inside = facts.device.collective("all_reduce", num_bytes, 8).s[0, 0]
    assert engine_layer.decode_all_reduce(facts, num_bytes, np.asarray([[8]])).s[0, 0] < inside  # the engine's own
    across = engine_layer.decode_all_reduce(facts, num_bytes, np.asarray([[16]])).s[0, 0]
    network = engine_layer.NETWORK_BASE_S + 2 * engine_layer.NETWORK_HOP_S
    wire = num_bytes[0, 0] / (4e11 * facts.training.network_efficiency)
    assert across - inside == pytest.approx(network + wire)
    assert across > 1.5 * inside


def test_a_decode_step_over_two_nodes_is_not_priced_as_one_node() -> None:
    facts, one = h100(2), np.asarray([[64.0]])
    steps = [generate.decode_step(facts, LLAMA, layouts(tp), one, one * 30, "bf16") for tp in (8, 16)]
    assert steps[1].comm.s[0, 0] - steps[0].comm.s[0, 0] > 2 * 80 * engine_layer.NETWORK_BASE_S


def test_attention_copies_share_sequences_and_not_heads() -> None:
    facts = h100()
    copied = engine_layer.attention_of_decode(facts, MOE, layouts(8, copies=8), ROWS, ROWS * 30, "bf16").s
    alone = engine_layer.attention_of_decode(facts, MOE, layouts(1), ROWS / 8, ROWS * 30, "bf16").s
    assert copied == pytest.approx(alone)
    reduces = [engine_layer.layer_reduces(facts, MOE, layouts(8, copies=c), ROWS).s[0, 0] for c in (1, 8)]
    assert reduces[1] == pytest.approx(reduces[0] / 2)  # nothing to reduce after attention


def test_expert_parallel_reads_whole_experts() -> None:
    facts, few = h100(), np.asarray([[4.0]])
    for ep in (1, 8):
        assert engine_layer.layer_work(facts, MOE, layouts(8, ep=ep), few, "fp8_block").s[0, 0] > 0
    with_ep, without = (engine_layer.layer_work(facts, MOE, layouts(8, ep=e), few, "bf16").s[0, 0] for e in (8, 1))
    assert with_ep != pytest.approx(without)


def test_a_kernel_without_groups_reads_more_cache() -> None:
    facts = h100()
    old = replace(facts, generation=replace(facts.generation, grouped_query_kernels=False))
    many = np.asarray([[256.0]])
    grouped, apart = (
        engine_layer.attention_of_decode(f, LLAMA, layouts(4), many, many * 8, "bf16").s[0, 0] for f in (facts, old)
    )
    assert 1.5 * grouped < apart < 8 * grouped


def test_fp8_cache_follows_per_tensor_checkpoints_where_the_engine_does() -> None:
    facts = make_facts("grpo", device="h100-80gb-sxm", generation="tensorrt-llm@1.0")
    assert engine_layer.kv_dtype(facts, "fp8") == "fp8"
    assert engine_layer.kv_dtype(facts, "fp8_block") == engine_layer.kv_dtype(facts, "bf16") == "bf16"
    assert engine_layer.kv_dtype(h100(), "fp8") == "bf16"


def test_stages_hand_activations_on() -> None:
    facts = h100()
    assert engine_layer.pipeline_hops(facts, LLAMA, layouts(2), ROWS).s[0, 0] == 0.0
    assert engine_layer.pipeline_hops(facts, LLAMA, layouts(2, pp=4), ROWS).s[0, 0] > 0.0
