"""Protects provenance end to end: whatever constant a price is made with, its weakness shows in the price's basis."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from profiles.engine_facts import GenerationEngine, TrainingEngine
from profiles.records import Basis, Priced
from simulator.cost.pricing import controller_cost, role_costs
from simulator.cost.role_layouts import RoleLayouts
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout
from simulator.play.simulate import simulate
from tests.builders import TINY, call_of, make_facts, make_plan, workload

NO_PART_OF_A_PRICE = {
    "overlap_dp",
    "overlap_tp",
    "gathers_ahead",  # switches: which traffic runs beside compute
    "param_bytes",
    "grad_bytes_per_param",
    "optimizer_bytes_per_param",  # sizes of states
    "small_reduces_per_step",
    "meetings_per_step",
    "kernels_per_layer",
    "reuse_distance_params",  # counts
    "max_num_seqs",
    "max_batched_tokens",
    "admits_with_output",
    "keeps_for_running",
    "captured_tokens",
    "prefix_hits",
    "shared_experts_beside",  # what the engine runs at once
    "tuned_experts",  # which kernels it runs
    "picked_prompt_ratio",  # of attention that picks blocks of keys: a rule, analytic whatever stands before it
    "picked_prompt_ratio_with_fp4",
    "kv_memory_share",
    "kv_share_of_free",
    "memory_reserve_bytes",
    "gathers_layers",  # memory
    "sampler_bytes_per_logit",
    "front_end_s",
    "front_end_s_per_prompt_token",  # serving, which has no provenance
    "wake_s",
    "dispatch_local_s",
    "dispatch_local_iteration_s",
    "dispatch_rank_s",
    "neighbour_slowdown",
    "crowded_slowdown",
    "neighbour_spread",  # put in place of others for one machine
}
"""Constants that decide what runs, not how long it takes; they may move a price."""


def job(**changes: object) -> Facts:
    """A job in which every term of a price is there: several nodes, states in host memory, layer-by-layer gathers."""
    work = workload(64, 128, 64, minibatches=2, reward_s_per_sample=1e-3)
    training = {
        "accumulate_bytes_per_param": 12.0,
        "small_reduces_per_step": 4.0,
        "meetings_per_step": 4.0,
        "meeting_s": 1e-3,
        "dispatch_iteration_s": 1e-2,
        "dispatch_iteration_s_per_sample": 1e-3,
        "dispatch_pool_rank_s": 1e-2,
        "forward_s_per_layer": 1e-2,
        "backward_s_per_layer": 1e-2,
        "forward_s_per_layer_sequence": 1e-2,
        "backward_s_per_layer_sequence": 1e-2,
        "forward_s_per_pass": 1e-2,
        "backward_s_per_pass": 1e-2,
        "call_s": 1e-3,
        "dispatch_s": 1e-3,
        "call_rank_s": 1e-3,
        "step_fixed_s": 1e-3,
        "export_s_per_tensor": 1e-3,
        "send_fixed_s": 1e-1,
        "send_s_per_tensor": 1e-3,
        "send_s_per_byte": 1e-10,
        "host_s_per_launch": 1e-5,
        "host_s_per_expert": 1e-1,
        "controller_s_per_token": 1e-6,
        "gather_copy_bytes_per_param": 4.0,
        "gather_s_per_layer_per_gpu": 1e-3,
        "scatter_copy_bytes_per_param": 6.0,
        "region_copies": 1.0,
        "sequence_parallel": True,
        "attention_ratio": 1.1,
        "element_wise_ratio": 1.1,
    }
    generation = {
        "host_s_per_step": 1e-3,
        "call_rank_s": 1e-3,
        "batch_wait_s": 1e-3,
        "host_s_per_remote_rank": 1e-3,
        "call_s": 1e-3,
        "sync_s_per_byte": 1e-10,
        "sync_growth_per_doubling": 0.5,
        "recomputed_context": 0.1,
        "attention_ratio": 1.1,
        "element_wise_ratio": 1.1,
        "first_token_in_prefill": True,
    }
    facts = make_facts(
        "ppo",
        "qwen1.5-moe-a2.7b",
        nodes=4,
        gpus_per_node=2,
        work=work,
        roles={"actor": "qwen1.5-moe-a2.7b", "critic": TINY, "reference": TINY, "reward": TINY},
        zero_stages=(1, 3),
    )
    facts = replace(
        facts,
        training=replace(facts.training, **training),
        generation=replace(facts.generation, **generation),
        implementation=Implementation(
            sleeping_engine="keeps-weights", grouped_experts=False, engine_driver="ray-graph"
        ),
    )
    return replace(facts, **changes)


def marked(facts: Facts, kind: str, constant: str, factor: float = 1.0) -> Facts:
    """``facts`` in which all constants are published and one of an engine is assumed; that one ``factor`` as large."""
    names = {f.name: Basis.PUBLISHED for f in fields(TrainingEngine)} | {
        f.name: Basis.PUBLISHED for f in fields(GenerationEngine)
    }
    training, generation = replace(facts.training, bases=names), replace(facts.generation, bases=names)
    spec = facts.device.spec
    published = dict.fromkeys(spec.bases, Basis.PUBLISHED)
    engine = training if kind == "training" else generation
    changed = replace(engine, bases=names | {constant: Basis.ASSUMED}, **{constant: getattr(engine, constant) * factor})
    engines = {"training": training, "generation": generation} | {kind: changed}
    launching = replace(spec, bases=published, kind="cpu")  # launches add to the work and do not hide in it
    return replace(facts, device=facts.device.with_spec(launching), **engines)


def prices(facts: Facts) -> Priced:
    """All that a job may cost: ZeRO 1 and 3, shared and own engine pool, both ways of resharding, offload."""
    total = Priced.zero()
    engines = GenerationLayouts.of([GenerationLayout(dp=1, tp=4, max_num_seqs=8, kv_cache_bytes=0)])
    for zero in (1, 3):
        layout = Layouts.of([ParallelLayout(dp=4, tp=2, micro_batch=4, zero_stage=zero)])
        score = Layouts.of([ParallelLayout(dp=8, tp=1, micro_batch=4)])
        for separate, method in ((False, "ds-chat"), (True, "hybridflow")):
            mine = RoleLayouts(
                layout, score, engines, separate_generation=separate, offload=("parameters", "optimizer")
            )
            for role in ("actor", "critic"):
                own = mine if role == "actor" else replace(mine, generation=None)
                for cost in role_costs(facts, role, own, method).values():
                    total = total + (cost.compute + cost.comm).sum()
    advantage = next(call for call in facts.dataflow.calls if call.key == "compute_advantage")
    cost = controller_cost(facts, advantage)
    return total + (cost.compute + cost.comm).sum()


def job_with(lora_rank: int) -> Facts:
    facts = job()
    return replace(facts, implementation=replace(facts.implementation, lora_rank=lora_rank))


@cache
def unmoved_s(lora_rank: int) -> float:
    """Seconds of the job with every constant as it is; a basis moves none."""
    facts = job_with(lora_rank)
    launching = replace(facts.device.spec, kind="cpu")  # as ``marked`` has it
    return float(prices(replace(facts, device=facts.device.with_spec(launching))).s)


CONSTANTS = [
    (kind, f.name)
    for kind, engine in (("training", TrainingEngine), ("generation", GenerationEngine))
    for f in fields(engine)
    if f.type in ("float", float)
]


@pytest.mark.parametrize(("kind", "constant"), CONSTANTS, ids=[f"{k}:{c}" for k, c in CONSTANTS])
def test_an_assumed_constant_shows_in_the_price_that_it_makes(kind: str, constant: str) -> None:
    adapters = 8 if constant == "adapter_ratio" else 0
    price = prices(marked(job_with(adapters), kind, constant, 1.5))
    shows = price.by_basis_s[Basis.ASSUMED] > 0
    if constant in NO_PART_OF_A_PRICE:
        assert not shows
    else:
        assert price.s != unmoved_s(adapters), "the job above does not reach this constant"
        assert shows


def test_a_device_rate_lends_its_basis() -> None:
    facts = job()
    spec = replace(facts.device.spec, bases=dict.fromkeys(facts.device.spec.bases, Basis.PUBLISHED))
    slow = replace(
        spec, sustained_flop_per_s={"bf16": 1e12}, bases={**spec.bases, "sustained_flop_per_s.bf16": Basis.ASSUMED}
    )
    layout = Layouts.of([ParallelLayout(dp=4, tp=2, micro_batch=4, zero_stage=1)])
    there = replace(facts, device=replace(facts.device, spec=slow))
    cost = role_costs(there, "critic", RoleLayouts(layout, layout))["update_critic"]
    assert float(cost.time.by_basis_s[Basis.ASSUMED][0]) > 0.5 * float(cost.time.s[0])


def test_what_a_job_states_is_assumed() -> None:
    facts = make_facts("grpo", TINY, work=workload(64, 128, 64, minibatches=2, reward_s_per_sample=1e-3))
    cost = controller_cost(facts, call_of(facts.dataflow, "compute_reward"))
    assert cost.time.by_basis_s[Basis.ASSUMED] == pytest.approx(64 * 1e-3 / facts.num_gpus)


def test_an_h100_rests_on_its_fitted_rate_and_not_on_a_published_one() -> None:
    facts = make_facts(
        "ppo",
        "qwen2.5-7b",
        device="h100-80gb-sxm",
        training="megatron-core@0.16",
        generation="vllm@0.32",
        work=workload(256, 512, 512),
    )
    shares = simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=4), facts).basis
    assert shares["fitted"] > 0.15  # the trainer's rate; host time of the engine is beside its GPU's work
    assert shares["assumed"] > 0
    assert shares["published"] < 0.05
    assert np.isclose(sum(shares.values()), 1.0)
