"""Protects how DeepSpeed-Chat generates: batches that a recipe states, each gathers, in a cache of every head."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.engine_facts import load_generation_engine
from profiles.models.catalogue import load_model
from profiles.workload import LengthDistribution, Workload
from simulator.cost import engine_memory, kv_budget, reshard
from simulator.cost.role_layouts import RoleLayouts
from simulator.cost.role_memory import role_memory
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


def test_every_model_scores_what_a_gpu_has_generated_at_once() -> None:
    run = run_system("deepspeed-chat", make_facts(nodes=2))
    for role in run.facts.dataflow.roles:
        scoring = run.plan.role(role).inference
        assert scoring is None or scoring.micro_batch == run.device_batch, role


@pytest.mark.parametrize(("tokens", "samples"), [(2048, 1), (512, 4), (4096, 1)])
def test_a_training_micro_batch_has_so_many_tokens(tokens: int, samples: int) -> None:
    """Recipes for short samples train several at once."""
    work = Workload(64, 1, tokens // 2, LengthDistribution.fixed(tokens // 2))
    actor = run_system("deepspeed-chat", make_facts(nodes=2, work=work)).plan.role("actor")
    assert actor.training and actor.training.micro_batch == samples


def test_the_workspace_holds_states_and_scores_of_every_sequence_and_stays() -> None:
    """Ten hidden states a token on every rank, scores of all pairs by a rank's heads; beside them the next gather."""
    facts, shape = replace(make_facts(nodes=2), generation=HYBRID), load_model("llama-2-7b")
    length = facts.workload.engine_prompt_tokens + facts.workload.response.maximum
    kept = engine_memory.kept_workspace_bytes(facts, shape, engine(4, 4, 8))[0]
    assert kept == 8 * 2 * (10 * 4096 * length + 8 * length**2)
    logits = engine_memory.generation_working_bytes(facts, shape, engine(4, 4, 8))[0] - kept
    assert logits == 8 * facts.workload.engine_prompt_tokens * 32000 * 6
    training = Layouts.of([ParallelLayout(dp=16, zero_stage=3)])
    layouts = RoleLayouts(training=training, inference=training, generation=engine(4, 4, 8))
    moving = role_memory(facts, "actor", layouts, "ds-chat").transient["transition"]
    assert moving["generation workspace"][0] == kept
    assert moving["gathered weights"][0] == pytest.approx(shape.num_params * 2 * (8 / 32 + 24 / 32 / 4), rel=0.01)


def test_an_engine_serves_one_rank_of_the_trainer_at_a_time() -> None:
    """OpenRLHF's ranks ask for a batch each, of one engine, which runs one request after the other."""
    run = run_system("openrlhf", make_facts(nodes=2))
    actor = run.plan.role("actor")
    assert actor.training and actor.inference and actor.generation
    assert actor.inference.micro_batch in run.system.rollout_batches
    assert actor.training.dp % actor.generation.dp == 0
    load = -(-run.facts.workload.num_samples // actor.generation.dp)
    assert actor.generation.max_num_seqs == min(actor.inference.micro_batch, load)
