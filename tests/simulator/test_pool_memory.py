"""Protects what a plan needs on a pool's fullest GPU: what stays, the largest call, engines apart, offloaded states."""

import numpy as np
import pytest

from simulator.cost.role_layouts import layouts_of
from simulator.cost.role_memory import role_memory
from simulator.facts import Facts
from simulator.plan.plan import Plan
from simulator.pool_memory import pool_memory
from tests.builders import TINY, make_facts, make_plan, replace_role, with_engine_pool, workload


@pytest.fixture
def facts() -> Facts:
    """PPO with tiny models on four nodes of four GPUs."""
    return make_facts("ppo", TINY, nodes=4, gpus_per_node=4, work=workload(64, 512, 512, minibatches=2))


@pytest.fixture
def plan(facts: Facts) -> Plan:
    return make_plan(facts, (("actor", "reference"), ("critic",), ("reward",)), (8, 4, 2))


@pytest.fixture
def apart(facts: Facts) -> Plan:
    """GRPO-like: the trainer on eight GPUs, engines on four others."""
    return with_engine_pool(make_plan(facts, (("actor", "reference", "critic", "reward"),), (8,)), 4)


def test_memory_is_the_sum_of_what_stays_and_the_largest_call(facts: Facts, plan: Plan) -> None:
    memory = pool_memory(plan, plan.pools[0], facts)
    assert sum(memory.classes.values()) == memory.used_bytes
    assert memory.capacity_bytes == facts.memory_capacity_bytes
    roles = {role: role_memory(facts, role, layouts_of(plan.role(role))) for role in ("actor", "reference")}
    resident = sum(float(m.resident_bytes[0]) for m in roles.values())
    largest = max(float(m.transient_bytes[0]) for m in roles.values())
    assert memory.used_bytes == pytest.approx(facts.training.memory_reserve_bytes + resident + largest, abs=20)
    assert memory.peak_call in {"generate_sequences", "update_actor", "compute_ref_log_prob"}


def test_an_engine_pool_holds_engines_and_the_trainer_does_not(facts: Facts, apart: Plan) -> None:
    trainer, engines = (pool_memory(apart, p, facts).classes for p in apart.pools)
    of_engine = {"engine reserve", "generation weights", "kv cache", "generation workspace"}
    assert set(engines) == {"reserve"} | of_engine
    assert not of_engine & set(trainer)
    assert {"parameters", "gradients", "optimizer"} <= set(trainer)
    engine = apart.role("actor").generation
    assert engine is not None
    assert engines["kv cache"] == engine.kv_cache_bytes
    assert engines["generation weights"] == 2 * TINY.num_params


def test_engines_share_no_buffers_across_pools(facts: Facts) -> None:
    """Where the engine runs from the training buffers on the same GPUs, on others it has a copy of its own."""
    assert facts.generation.shares_weights
    together = make_plan(facts, (("actor", "reference", "critic", "reward"),), (8,))
    copies = [
        float(role_memory(facts, "actor", layouts_of(p.role("actor"), p)).transient["generate_sequences"][name][0])
        for p in (together, with_engine_pool(together, 8))
        for name in ["generation weights"]
    ]
    assert copies == [0.0, 2 * TINY.num_params]


def resident(plan: Plan, facts: Facts, role: str, call: str) -> tuple[set[str], set[str]]:
    """Classes that a role keeps all the time, and those it has while one call runs."""
    needs = role_memory(facts, role, layouts_of(plan.role(role), plan))
    return set(needs.resident), {name for name, size in needs.transient.get(call, {}).items() if np.any(size > 0)}


def test_offloaded_states_are_there_only_while_a_call_uses_them(facts: Facts, plan: Plan) -> None:
    states = {"parameters", "gradients", "optimizer"}
    for role, call in (("actor", "update_actor"), ("critic", "update_critic")):
        away = replace_role(plan, role, offload=("parameters", "optimizer"))
        kept, training = resident(away, facts, role, call)
        assert kept == ({"engine reserve"} if role == "actor" else set())
        assert states <= training
    assert (
        not states
        & resident(
            replace_role(plan, "actor", offload=("parameters", "optimizer")), facts, "actor", "generate_sequences"
        )[1]
    )
    away = replace_role(plan, "critic", offload=("parameters", "optimizer"))
    assert resident(away, facts, "critic", "compute_values")[1] & states == {"parameters"}
    half = replace_role(plan, "critic", offload=("optimizer",))
    assert resident(half, facts, "critic", "update_critic")[0] == {"parameters"}
    assert not resident(half, facts, "critic", "compute_values")[1] & states


def test_a_frozen_role_offloads_or_swaps_its_parameters(facts: Facts, plan: Plan) -> None:
    away = replace_role(plan, "reference", offload=("parameters",))
    assert resident(away, facts, "reference", "compute_ref_log_prob") == (
        set(),
        {"parameters", "activations", "logits"},
    )
    swapped = replace_role(plan, "reference", offload=("swap",))
    assert resident(swapped, facts, "reference", "compute_ref_log_prob") == (set(), {"activations", "logits"})


def test_offloading_makes_room_for_the_engine() -> None:
    """While the engine generates, the actor's states stand beside it, or are in host memory."""
    facts = make_facts("grpo", TINY, gpus_per_node=4, work=workload(64, 512, 512), generation="vllm@0.32")
    assert not facts.generation.shares_weights
    plan = make_plan(facts, (("actor",),), (4,))
    engine = plan.role("actor").generation
    assert engine is not None
    plan = replace_role(plan, "actor", generation=engine.model_copy(update={"kv_cache_bytes": 20 * 2**30}))
    away = replace_role(plan, "actor", offload=("parameters", "optimizer"))
    here, there = (pool_memory(p, p.pools[0], facts) for p in (plan, away))
    assert here.peak_call == there.peak_call == "generate_sequences"
    assert not {"parameters", "gradients", "optimizer"} & set(there.classes)
    states = role_memory(facts, "actor", layouts_of(plan.role("actor"))).resident
    moved = sum(float(states[name][0]) for name in ("parameters", "gradients", "optimizer"))
    assert here.used_bytes - there.used_bytes == pytest.approx(moved, abs=20)


def test_an_engine_has_its_weights_even_where_the_training_buffers_are_away(facts: Facts, plan: Plan) -> None:
    assert facts.generation.shares_weights
    away = replace_role(plan, "actor", offload=("parameters", "optimizer"))
    assert resident(away, facts, "actor", "generate_sequences")[1] & {"parameters", "generation weights"}
