"""Protects one decode step: launches without graphs, weights that are read, contexts, workers of other nodes."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.workload import LengthDistribution
from simulator.cost import decode, generate
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import GenerationLayouts
from tests.builders import make_facts, workload

LLAMA = load_model("llama-2-7b")


def engine(dp: int, tp: int, slots: int, pp: int = 1) -> GenerationLayouts:
    return GenerationLayouts(*np.asarray([[dp], [tp], [pp], [slots]], dtype=np.int64))


def seconds(facts: Facts, *args: int, model: str = "llama-2-7b") -> float:
    return float(generate.generation_cost(facts, load_model(model), engine(*args)).time.s[0])


def test_the_launch_floor_holds_small_steps_where_there_are_no_graphs() -> None:
    facts = make_facts()
    assert not facts.generation.cuda_graphs
    tiny_batch = decode.decode_step(facts, LLAMA, engine(1, 8, 1), np.ones((1, 1)), np.full((1, 1), 100.0), "bf16")
    host = facts.generation.host_s_per_step + facts.generation.host_s_per_sequence
    launch = facts.generation.launch_s_per_layer + facts.generation.collective_launch_s
    floor = launch * LLAMA.num_layers + host
    assert float(tiny_batch.time.s[0, 0]) == pytest.approx(floor)
    graphs = make_facts(generation="vllm@0.32")
    faster = decode.decode_step(graphs, LLAMA, engine(1, 8, 1), np.ones((1, 1)), np.full((1, 1), 100.0), "bf16")
    assert faster.time.s[0, 0] < floor / 2


def test_a_decode_step_reads_at_least_the_weights() -> None:
    facts = make_facts(generation="vllm@0.32", device="h100-80gb-sxm")
    for tp in (1, 2, 4, 8):
        step = decode.decode_step(facts, LLAMA, engine(1, tp, 1), np.ones((1, 1)), np.full((1, 1), 50.0), "bf16")
        roofline = (LLAMA.num_params - LLAMA.embedding_params) * 2 / tp / facts.device.spec.memory_bytes_per_s
        assert step.time.s[0, 0] > roofline


def test_longer_contexts_and_more_sequences_make_a_step_longer() -> None:
    facts = make_facts(generation="vllm@0.32")
    active, context = np.asarray([[1.0, 16.0, 64.0, 256.0]]), np.asarray([[500.0, 2000.0, 8000.0]])
    by_batch = decode.decode_step(facts, LLAMA, engine(1, 2, 256), active, np.full((1, 4), 1000.0), "bf16").time.s
    by_context = decode.decode_step(facts, LLAMA, engine(1, 2, 256), np.full((1, 3), 64.0), context, "bf16").time.s
    assert np.all(np.diff(by_batch[0]) > 0)
    assert np.all(np.diff(by_context[0]) > 0)


def test_rays_graph_waits_for_every_worker_of_another_node() -> None:
    lengths = LengthDistribution.fixed(64)
    base = make_facts("grpo", load_model("llama-3.1-70b"), nodes=2, device="h100-80gb-sxm", generation="vllm@0.12")
    base = replace(base, workload=workload(prompts=8, response=lengths, prompt_length=64))

    def taken(driver: str, tp: int) -> float:
        facts = replace(base, implementation=Implementation(engine_driver=driver))  # type: ignore[arg-type]
        return seconds(facts, 1, tp, 8, model="llama-3.1-70b")

    remote = 8 * base.generation.host_s_per_remote_rank
    steps = 64 - base.generation.first_token_in_prefill
    assert taken("ray-graph", 16) - taken("ray", 16) == pytest.approx(steps * remote)
    assert taken("ray-graph", 8) == taken("ray", 8) == taken("own", 8)  # 0.12 plans no step ahead anyway
    ahead = replace(base, generation=replace(base.generation, plans_ahead=True))
    waits = replace(ahead, implementation=Implementation(engine_driver="ray"))
    assert seconds(ahead, 1, 8, 8, model="llama-3.1-70b") < seconds(waits, 1, 8, 8, model="llama-3.1-70b")
