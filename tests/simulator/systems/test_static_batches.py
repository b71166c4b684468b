"""Protects how DeepSpeed-Chat generates: batches that a recipe states, each gathers, in a cache of every head."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.engine_facts import load_generation_engine
from profiles.models.catalogue import load_model
from simulator.cost import kv_budget, reshard
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import ParallelLayout
from simulator.systems.run import run_system
from tests.builders import make_facts

HYBRID = load_generation_engine("deepspeed-hybrid@0.14")


def engine(dp: int, tp: int, sequences: int) -> GenerationLayouts:
    return GenerationLayouts(*np.asarray([[dp], [tp], [1], [sequences]], dtype=np.int64))


def test_each_batch_gathers_the_weights_anew() -> None:
    facts = replace(make_facts(nodes=2), generation=HYBRID)
    shape, training = load_model("llama-2-7b"), Layouts.of([ParallelLayout(dp=16, zero_stage=3)])
    samples = facts.workload.num_samples

    def seconds(sequences: int) -> float:
        layouts = engine(4, 4, sequences)
        return float(reshard.transition_cost(facts, shape, training, layouts, "bf16", "ds-chat").time.s[0])

    whole = seconds(-(-samples // 4))
    assert seconds(-(-samples // 8)) == pytest.approx(2 * whole)
    once = replace(facts, generation=replace(HYBRID, gathers_every_batch=False))
    again = reshard.transition_cost(once, shape, training, engine(4, 4, 1), "bf16", "ds-chat")
    assert float(again.time.s[0]) == pytest.approx(whole)


def test_the_cache_has_room_for_every_query_head() -> None:
    shape = load_model("llama-2-70b")  # 64 query heads, 8 of keys
    facts = replace(make_facts(model="llama-2-70b"), generation=HYBRID)
    grouped = replace(facts, generation=replace(HYBRID, caches_every_head=False))
    every, few = (kv_budget.bytes_per_token(f, shape, engine(1, 8, 16))[0] for f in (facts, grouped))
    assert every == 8 * few == 80 * 2 * 8 * 128 * 2.0


def test_a_batch_of_a_gpu_is_a_power_of_two_and_can_be_given() -> None:
    free = run_system("deepspeed-chat", make_facts(nodes=2))
    assert free.device_batch in (1, 2, 4, 8, 16, 32, 64)
    given = run_system("deepspeed-chat", make_facts(nodes=2), device_batch=4)
    assert given.device_batch == 4
    assert given.timeline.iteration_s >= free.timeline.iteration_s
    assert run_system("openrlhf", make_facts(nodes=2), device_batch=4).device_batch is None


def test_engines_hold_what_the_trainers_ranks_wait_for() -> None:
    """OpenRLHF's trainer asks for a batch of each of its GPUs and waits, so engines run no others beside them."""
    run = run_system("openrlhf", make_facts(nodes=2))
    actor = run.plan.role("actor")
    assert actor.training and actor.inference and actor.generation
    asked = actor.inference.micro_batch * actor.training.dp
    assert actor.inference.micro_batch in run.system.rollout_batches
    assert actor.generation.max_num_seqs == min(-(-asked // actor.generation.dp), 256)
