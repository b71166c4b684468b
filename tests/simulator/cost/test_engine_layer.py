"""Protects a layer of an inference engine: how it is split, and what crosses nodes."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.models.shape import ModelShape
from profiles.other_kernels import OtherKernels
from simulator.cost import decode, engine_comms, engine_layer
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
    assert engine_comms.decode_all_reduce(facts, num_bytes, np.asarray([[8]])).s[0, 0] < inside  # the engine's own
    across = engine_comms.decode_all_reduce(facts, num_bytes, np.asarray([[16]])).s[0, 0]
    network = engine_comms.NETWORK_BASE_S + 2 * engine_comms.NETWORK_HOP_S
    wire = num_bytes[0, 0] / (4e11 * facts.training.network_efficiency)
    assert across - inside == pytest.approx(network + wire)
    assert across > 1.5 * inside


def test_a_decode_step_over_two_nodes_is_not_priced_as_one_node() -> None:
    facts, one = h100(2), np.asarray([[64.0]])
    steps = [decode.decode_step(facts, LLAMA, layouts(tp), one, one * 30, "bf16") for tp in (8, 16)]
    assert steps[1].comm.s[0, 0] - steps[0].comm.s[0, 0] > 2 * 80 * engine_comms.NETWORK_BASE_S


def test_attention_copies_have_nothing_to_reduce() -> None:
    facts = h100()
    reduces = [engine_comms.layer_reduces(facts, MOE, layouts(8, copies=c), ROWS).s[0, 0] for c in (1, 8)]
    sent = ROWS * MOE.hidden * facts.activation_bytes
    there, back = (facts.device.collective(kind, sent, 8).s[0, 0] for kind in ("all_gather", "reduce_scatter"))
    assert reduces[1] == pytest.approx(there + back)  # nothing to reduce after attention
    assert reduces[1] > 1.1 * reduces[0] / 2, "NCCL's latency, twice"


def test_a_layer_that_is_one_part_alone_has_one_collective_and_one_norm() -> None:
    """Nemotron-H's mixers, attention and experts are layers by themselves, each with one all-reduce behind it."""
    facts, nano = h100(), load_model("nvidia-nemotron-3-nano-30b-a3b-bf16")
    once = engine_comms.decode_all_reduce(facts, ROWS * nano.hidden * facts.activation_bytes, np.asarray([[8]]))
    assert engine_comms.layer_reduces(facts, nano, layouts(8), ROWS).s == pytest.approx(once.s)
    assert engine_comms.layer_reduces(facts, LLAMA, layouts(8), ROWS).s == pytest.approx(
        2 * engine_comms.decode_all_reduce(facts, ROWS * LLAMA.hidden * facts.activation_bytes, np.asarray([[8]])).s
    )


def test_expert_parallel_reads_whole_experts() -> None:
    facts, few = h100(), np.asarray([[4.0]])
    for ep in (1, 8):
        assert engine_layer.layer_work(facts, MOE, layouts(8, ep=ep), few, "fp8_block").s[0, 0] > 0
    with_ep, without = (engine_layer.layer_work(facts, MOE, layouts(8, ep=e), few, "bf16").s[0, 0] for e in (8, 1))
    assert with_ep != pytest.approx(without)


def test_an_engine_without_a_pause_is_held_back_by_its_power() -> None:
    facts, rows = h100(), np.asarray([[8.0, 8192.0]])
    table, held = (engine_layer.layer_work(facts, LLAMA, layouts(1), rows, "fp8", s).s[0] for s in (False, True))
    assert held[0] == pytest.approx(table[0])  # bound by memory
    assert held[1] > 1.05 * table[1]


def test_stages_hand_activations_on() -> None:
    facts = h100()
    assert engine_comms.pipeline_hops(facts, LLAMA, layouts(2), ROWS).s[0, 0] == 0.0
    assert engine_comms.pipeline_hops(facts, LLAMA, layouts(2, pp=4), ROWS).s[0, 0] > 0.0


def test_norms_of_queries_and_keys_are_kernels_of_their_own_where_nothing_compiles_them_in() -> None:
    """Two more gaps a layer on such a part; none for a model without those norms."""
    base = h100()

    def seconds(shape: ModelShape, apart: int) -> float:
        kernels = OtherKernels(gap_s=1e-5, norms_apart=apart)
        facts = replace(base, device=base.device.with_spec(replace(base.device.spec, kernels=kernels)))
        return float(engine_layer.copy_work(facts, shape, layouts(8), ROWS, "bf16").s[0, 0])

    assert seconds(MOE, 2) - seconds(MOE, 0) > 2e-5
    assert seconds(LLAMA, 2) == seconds(LLAMA, 0)
