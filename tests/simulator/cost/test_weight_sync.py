"""Protects the price of weights that go to a pool of engines: each term by hand, and which side paces."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.engine_facts import load_training_engine
from profiles.models.catalogue import load_model
from profiles.records import Basis
from simulator.cost.engine_memory import generation_weight_bytes
from simulator.cost.handover import conversion_time
from simulator.cost.weight_sync import weight_sync_cost
from simulator.facts import Implementation
from simulator.plan.layouts import GenerationLayouts
from tests.builders import make_facts
from tests.simulator.cost.test_reshard import modern


def test_weight_sync_is_paced_by_the_slower_side() -> None:
    """4 nodes train, 1 node generates: the model enters one node's cards once; a second node changes nothing."""
    facts, shape = make_facts(nodes=8), load_model("llama-2-7b")
    engine = GenerationLayouts(*np.asarray([[4, 8, 1], [2, 2, 1], [1, 1, 1], [8, 8, 8]]))
    cost = weight_sync_cost(facts, shape, np.asarray([32, 32, 32]), engine, "bf16")
    whole, per_gpu = 2 * shape.num_params, 25e9 * 0.85 / 8
    latency = facts.device.spec.inter_node_latency_s
    assert cost.comm.s[0] == pytest.approx(whole / (8 * per_gpu) + latency)
    assert cost.comm.s[1] == cost.comm.s[0]
    assert cost.comm.s[2] == pytest.approx(
        whole / per_gpu + latency
    )  # one receiving GPU has an eighth of a node's cards
    near = weight_sync_cost(facts, shape, np.asarray([4]), engine.take(np.asarray([2])), "bf16")
    assert near.comm.s[0] < cost.comm.s[0]


def test_changes_alone_are_sent_where_the_row_says_so() -> None:
    """Every rank looks through its whole shard and every tensor; one weight in fifty is sent, at six bytes."""
    facts, shape = modern(weight_sync="changes"), load_model("llama-3.1-8b")
    facts = replace(facts, training=replace(facts.training, send_fixed_s=2.0, send_s_per_byte=1e-10))
    engine = GenerationLayouts(*np.asarray([[4], [2], [1], [64]]))
    found = weight_sync_cost(facts, shape, [8], engine, "bf16")
    whole, changed = 2.0 * shape.num_params, 0.02 * 6 * shape.num_params
    fixed = facts.generation.transition_fixed_s + 2.0
    looked = 2 * float(facts.device.host_copy(whole / 8).s) + 0.2e-3 * 291
    written = generation_weight_bytes(shape, engine, 6)[0] * 0.02 / facts.generation.reload_bytes_per_s
    assert float(found.compute.s[0]) == pytest.approx(fixed + looked + changed * 1e-10 + written)
    every = weight_sync_cost(modern(), shape, [8], engine, "bf16")
    assert float(found.comm.s[0]) == pytest.approx(float(every.comm.s[0]) * 0.06)


def test_changes_of_a_small_model_take_little_less_than_all_of_it() -> None:
    """The rounds of calls stay: of a dense 7B model three quarters of the time of a full broadcast."""
    facts, shape = modern(), load_model("qwen2.5-7b")
    facts = replace(facts, training=load_training_engine("fsdp@2.13"))
    engine = GenerationLayouts(*np.asarray([[1], [1], [8], [64]]))
    few_facts = replace(facts, implementation=Implementation(weight_sync="changes"))
    every, few = (float(weight_sync_cost(f, shape, [8], engine, "bf16").time.s[0]) for f in (facts, few_facts))
    assert 0.5 < few / every < 0.9


def test_every_term_by_hand() -> None:
    """16 GPUs send, 16 receive, 8 in a domain: a tree of four domains, two doublings."""
    facts, shape = modern(), load_model("llama-3.1-8b")
    named = {"send_fixed_s": 2.0, "send_s_per_tensor": 1e-3, "send_s_per_byte": 1e-10}
    trainer = replace(facts.training, **named)
    engine = replace(facts.generation, transition_fixed_s=3.0, sync_s_per_byte=2e-10, sync_growth_per_doubling=0.5)
    facts = replace(facts, training=trainer, generation=engine)
    layouts = GenerationLayouts(*np.asarray([[4], [4], [1], [64]]))
    whole = 2.0 * shape.num_params
    fixed = 5.0 + whole * 2e-10 * 2.0 + 291 * 1e-3 + whole * 1e-10
    fixed += float(conversion_time(facts, generation_weight_bytes(shape, layouts, 2)).s[0])
    moved = whole / (facts.group.inter_node_bytes_per_s * 0.85) + facts.device.spec.inter_node_latency_s
    found = weight_sync_cost(facts, shape, 16, layouts, "bf16")
    assert float(found.comm.s[0]) == pytest.approx(moved)
    assert float(found.time.s[0]) == pytest.approx(fixed + moved)


def test_pools_of_one_domain_use_its_links_alone() -> None:
    """4 and 4 GPUs of 8; with a fifth sender the model leaves through the cards."""
    facts, shape = modern(), load_model("llama-3.1-8b")
    layouts = GenerationLayouts(*np.asarray([[4], [1], [1], [64]]))
    shard = generation_weight_bytes(shape, layouts, 2)
    near, far = (weight_sync_cost(facts, shape, n, layouts, "bf16").comm for n in (4, 5))
    assert float(near.s[0]) == pytest.approx(float(shard[0]) / facts.device.spec.nvlink_bytes_per_s)
    assert float(near.by_basis_s[Basis.ANALYTIC, 0]) == float(near.s[0])
    slower = 2.0 * shape.num_params / (facts.group.inter_node_bytes_per_s * 0.85 * 4 / 8)
    assert float(far.s[0]) == pytest.approx(slower + facts.device.spec.inter_node_latency_s)


def test_an_engine_in_fp8_quantises_every_tensor_that_it_receives() -> None:
    """The trainer sends bf16 whatever the engine holds; each rank quantises all of it before it cuts its part out."""
    facts, shape = modern(), load_model("llama-3.1-8b")
    engine = GenerationLayouts(*np.asarray([[4, 8], [2, 4], [1, 1], [64, 64]]))
    plain, narrow = (weight_sync_cost(facts, shape, [8, 8], engine, dtype) for dtype in ("bf16", "fp8"))
    assert narrow.comm.s == pytest.approx(plain.comm.s)
    more = narrow.compute.s - plain.compute.s
    params = shape.num_params - shape.embedding_params - shape.head_params
    assert more[0] == more[1]
    assert more[0] > params * 40 / facts.device.spec.memory_bytes_per_s
