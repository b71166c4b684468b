"""Protects the judge of every plan: a good plan passes, and each rule is broken once and named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.errors import InfeasibleError
from simulator.facts import Facts
from simulator.feasibility import check_plan, require_feasible
from simulator.plan.plan import ParallelLayout, Plan
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory
from tests.builders import (
    MOE,
    TINY,
    engine_layout,
    make_facts,
    make_plan,
    replace_role,
    with_engine_pool,
    workload,
)

SETS = (("actor", "reference"), ("critic",), ("reward",))
SIZES = (8, 4, 2)


@pytest.fixture
def facts() -> Facts:
    """PPO with tiny models on four nodes of four GPUs."""
    return make_facts("ppo", TINY, nodes=4, gpus_per_node=4, work=workload(64, 512, 512, minibatches=2))


@pytest.fixture
def plan(facts: Facts) -> Plan:
    return make_plan(facts, SETS, SIZES)


def pool(plan: Plan, i: int, **changes: object) -> Plan:
    pools = tuple(p.model_copy(update=changes) if j == i else p for j, p in enumerate(plan.pools))
    return plan.model_copy(update={"pools": pools})


def layout(plan: Plan, role: str, **changes: object) -> Plan:
    """Change training and inference layouts of a role alike."""
    entry = plan.role(role)
    new = {
        stage: old.model_copy(update=changes)
        for stage in ("training", "inference")
        if (old := getattr(entry, stage)) is not None
    }
    return replace_role(plan, role, **new)


def test_a_good_plan_passes(facts: Facts, plan: Plan) -> None:
    assert check_plan(plan, facts) == []
    require_feasible(plan, facts)


def more_ranks_than_gpus(plan: Plan, facts: Facts) -> Plan:
    return layout(plan, "critic", dp=8)


def test_a_role_may_leave_gpus_of_its_pool_idle(plan: Plan, facts: Facts) -> None:
    assert check_plan(layout(plan, "critic", dp=2), facts) == []


def inference_elsewhere(plan: Plan, facts: Facts) -> Plan:
    scored = plan.role("critic").inference
    assert scored is not None
    return replace_role(plan, "critic", inference=scored.model_copy(update={"dp": 2, "tp": 2}))


def other_zero_for_inference(plan: Plan, facts: Facts) -> Plan:
    scored = plan.role("critic").inference
    assert scored is not None
    return replace_role(plan, "critic", inference=scored.model_copy(update={"zero_stage": 0}))


def kv_budget(by: int) -> Callable[[Plan, Facts], Plan]:
    def change(plan: Plan, facts: Facts) -> Plan:
        engine = plan.role("actor").generation
        assert engine is not None
        return replace_role(
            plan, "actor", generation=engine.model_copy(update={"kv_cache_bytes": engine.kv_cache_bytes + by})
        )

    return change


def kv_cache(size: int) -> Callable[[Plan, Facts], Plan]:
    def change(plan: Plan, facts: Facts) -> Plan:
        engine = plan.role("actor").generation
        assert engine is not None
        return replace_role(plan, "actor", generation=engine.model_copy(update={"kv_cache_bytes": size}))

    return change


def three_gpus(plan: Plan, facts: Facts) -> Plan:
    return layout(pool(plan, 2, num_gpus=3), "reward", dp=1, tp=3)


def deep(plan: Plan, facts: Facts) -> Plan:
    """16 pipeline stages of 8 layers."""
    plan = make_plan(facts, (("actor", "reference", "critic", "reward"),), (16,))
    return layout(plan, "critic", dp=1, pp=16)


def without_role(plan: Plan, facts: Facts) -> Plan:
    return plan.model_copy(update={"roles": plan.roles[:-1]})


def unpooled(plan: Plan, facts: Facts) -> Plan:
    return pool(plan, 2, roles=())


BROKEN: list[tuple[str, Callable[[Plan, Facts], Plan], str, str]] = [
    ("a role is missing", without_role, "roles", "the plan places .* the job has"),
    ("a pool lost its role", unpooled, "roles pools", "the pools hold .* the plan lays out"),
    ("two pools overlap", lambda p, f: pool(p, 1, first_gpu=4), "pools", "pools A and B both use GPU 4"),
    (
        "a pool straddles a node",
        lambda p, f: pool(p, 2, first_gpu=15 - 4),
        "granularity pools",
        "pool C is neither whole nodes of 4",
    ),
    (
        "a pool ends beyond the cluster",
        lambda p, f: pool(p, 1, first_gpu=16),
        "pools",
        "ends at GPU 20, the cluster has 16",
    ),
    ("a pool of another device", lambda p, f: pool(p, 1, device="h100-80gb-sxm"), "pools", "wants h100-80gb-sxm"),
    ("two pools of one name", lambda p, f: pool(p, 1, name="A"), "pools", "pool names must differ"),
    ("an unknown pool", lambda p, f: replace_role(p, "critic", pool="Z"), "pools", "pool 'Z', which does not exist"),
    ("another's pool", lambda p, f: replace_role(p, "critic", pool="C"), "pools", "pool 'C', which does not list it"),
    ("more ranks than GPUs", more_ranks_than_gpus, "degrees", "critic training: 8 ranks on a pool of 4 GPUs"),
    ("chunks without stages", lambda p, f: layout(p, "critic", vpp=4), "degrees", "interleaving needs stages"),
    ("heads do not divide", three_gpus, "degrees", r"tiny \(8 heads, 4 KV heads\) cannot be split 3 ways"),
    ("more stages than layers", deep, "degrees", "critic training: 16 pipeline stages for 8 layers"),
    ("a ZeRO stage the engine lacks", lambda p, f: layout(p, "critic", zero_stage=2), "engine", "no ZeRO stage 2"),
    (
        "experts of a dense model",
        lambda p, f: layout(p, "critic", ep=2),
        "degrees",
        "tiny is dense: it has no experts to spread 2 ways",
    ),
    ("scores elsewhere than it trains", inference_elsewhere, "layouts", "critic trains in .* and scores in"),
    ("scores in another sharding", other_zero_for_inference, "layouts", "scores in its training layout"),
    (
        "no training layout",
        lambda p, f: replace_role(p, "critic", training=None),
        "layouts",
        "critic needs training layout",
    ),
    (
        "an engine for the critic",
        lambda p, f: replace_role(p, "critic", generation=engine_layout(f, "actor", 4, 1)),
        "layouts",
        "critic takes no generation layout",
    ),
    ("too little KV cache", kv_cache(1024 * 16384 - 1), "memory", "one sequence of 1024 tokens needs 0.02 GiB of KV"),
    ("more KV cache than memory", kv_budget(10**12), "memory", "pool A needs .* during generate_sequences"),
]


@pytest.mark.parametrize(("change", "rule", "message"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_each_rule_broken_once(
    facts: Facts, plan: Plan, change: Callable[[Plan, Facts], Plan], rule: str, message: str
) -> None:
    broken = change(plan, facts)
    found = check_plan(broken, facts)
    assert {v.rule for v in found} == set(rule.split()), found
    with pytest.raises(InfeasibleError, match=message):
        require_feasible(broken, facts)
    with pytest.raises(InfeasibleError, match="this plan cannot run"):
        simulate(broken, facts)


def test_more_ranks_than_samples(facts: Facts, plan: Plan) -> None:
    few = replace(facts, workload=workload(4, 512, 512, minibatches=2))
    messages = [v.message for v in check_plan(plan, few)]
    assert any("actor: 8 data-parallel ranks for 2 samples" in m for m in messages), messages
    assert any("actor generation: 8 replicas for 4 samples" in m for m in messages), messages


def test_expert_parallelism_must_divide_experts_and_ranks() -> None:
    facts = make_facts("grpo", MOE, work=workload(64))
    plan = make_plan(facts, (("actor",),), (8,), tp=2)
    assert check_plan(layout(plan, "actor", ep=4), facts) == []
    assert {v.rule for v in check_plan(layout(plan, "actor", ep=8), facts)} == {"degrees"}  # 60 experts


def test_one_byte_decides(facts: Facts, plan: Plan) -> None:
    used = pool_memory(plan, plan.pools[0], facts).used_bytes

    def with_memory(size: int) -> Facts:
        return replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=size)))

    assert check_plan(plan, with_memory(used)) == []
    assert {v.rule for v in check_plan(plan, with_memory(used - 1))} == {"memory"}


def test_a_plan_for_another_algorithm_is_refused(facts: Facts, plan: Plan) -> None:
    other = plan.model_copy(update={"algorithm": "remax"})
    assert {v.rule for v in check_plan(other, facts)} == {"roles"}


@pytest.mark.parametrize("algorithm", ["ppo", "remax", "grpo", pytest.param("safe-rlhf", marks=pytest.mark.slow)])
@pytest.mark.parametrize("memory_gib", [6.0, 80.0])
def test_no_returned_plan_fails(algorithm: str, memory_gib: float) -> None:
    facts = make_facts(
        algorithm,
        TINY,
        nodes=2,
        gpus_per_node=4,
        memory_bytes=int(memory_gib * 2**30),
        reserve_bytes=1e9,
        work=workload(64, 512, 512, minibatches=2),
    )
    result = find_plan(SearchRequest(facts))
    for plan in (result.plan, *(r.plan for r in result.runners_up)):
        assert check_plan(plan, facts) == []


def test_context_parallel_ranks_count(facts: Facts, plan: Plan) -> None:
    """cp takes GPUs like any other degree."""
    assert ParallelLayout(dp=2, cp=2).num_gpus == 4
    assert check_plan(layout(plan, "critic", dp=2, cp=2), facts) == []


def test_the_engine_takes_no_more_sequences_than_it_can(facts: Facts, plan: Plan) -> None:
    most = int(facts.generation.max_num_seqs)
    generation = plan.role("actor").generation
    assert generation is not None
    many = replace_role(plan, "actor", generation=generation.model_copy(update={"max_num_seqs": most + 1}))
    assert [v.rule for v in check_plan(many, facts)] == ["engine"]


def test_no_pipeline_stage_is_left_empty() -> None:
    """Twelve stages of three layers hold 32 layers in eleven of them."""
    facts = make_facts("ppo", "llama-2-7b", nodes=6, gpus_per_node=8)
    plan = make_plan(facts, (("actor",), ("critic", "reference", "reward")), (24, 24), tp=2)
    bad = layout(plan, "critic", dp=1, tp=2, pp=12)
    assert any("12 stages leave the last one without any of 32 layers" in v.message for v in check_plan(bad, facts))


def test_a_kv_budget_of_one_longest_sequence_is_enough(facts: Facts, plan: Plan) -> None:
    """512 prompt and 512 response tokens of 8 layers x 2 x 4 KV heads x 128 x 2 bytes; the other seven wait."""
    assert check_plan(kv_cache(1024 * 16384)(plan, facts), facts) == []
    half = engine_layout(facts, "actor", 4, 2).model_copy(update={"kv_cache_bytes": 512 * 16384})
    assert check_plan(replace_role(plan, "actor", generation=half), facts) == [], "two ranks hold half of it each"


def test_tensor_parallelism_may_be_wider_than_an_nvlink_domain(facts: Facts, plan: Plan) -> None:
    """It is slow and some do it: a plan may say so, the search asks for leave."""
    engine = engine_layout(facts, "actor", 1, 8)
    assert facts.group.nvlink_domain_gpus == 4
    assert check_plan(replace_role(plan, "actor", generation=engine), facts) == []
    near = simulate(plan, facts)
    far = simulate(layout(plan, "reference", dp=1, tp=8), facts)
    spans = [next(s for s in t.spans if s.call == "compute_ref_log_prob") for t in (near, far)]
    assert spans[1].comm_s > spans[0].comm_s


@pytest.fixture
def apart(facts: Facts) -> Plan:
    """GRPO-like: the trainer on eight GPUs, engines on four others."""
    return with_engine_pool(make_plan(facts, (("actor", "reference", "critic", "reward"),), (8,)), 4)


def test_a_pool_of_engines_is_a_good_plan_under_every_schedule(facts: Facts, apart: Plan) -> None:
    assert check_plan(apart, facts) == []
    for schedule in ("one-step-off", "async"):
        later = apart.model_copy(update={"schedule": schedule})
        assert check_plan(later, facts) == []
        assert check_plan(later.model_copy(update={"in_flight_updates": True, "steps_in_flight": 3}), facts) == []


def alone(plan: Plan) -> Plan:
    return replace_role(plan, "actor", generation_pool=None)


APART_BROKEN: list[tuple[str, Callable[[Plan], Plan], str]] = [
    ("an unknown pool", lambda p: replace_role(p, "actor", generation_pool="H"), "actor generates on pool 'H', which"),
    ("an idle pool", alone, "pool G has no role and nothing generates on it"),
    ("engines on the wrong number of GPUs", lambda p: pool(p, 1, num_gpus=2), "4 ranks on a pool of 2 GPUs"),
    ("engines where the trainer is", lambda p: pool(p, 1, first_gpu=4), "pools A and G both use GPU 4"),
    (
        "in-flight updates of engines that stand still",
        lambda p: p.model_copy(update={"in_flight_updates": True}),
        "in-flight updates need a schedule that generates while it trains",
    ),
    (
        "overlapping on the same GPUs",
        lambda p: pool(alone(p), 1, roles=()).model_copy(update={"pools": p.pools[:1], "schedule": "one-step-off"}),
        "the schedule is one-step-off, which generates while it trains; give the actor a dedicated generation_pool",
    ),
    (
        "its own pool by name",
        lambda p: replace_role(p, "actor", generation_pool="A").model_copy(
            update={"pools": p.pools[:1], "schedule": "async"}
        ),
        "the schedule is async",
    ),
]


@pytest.mark.parametrize(("change", "message"), [b[1:] for b in APART_BROKEN], ids=[b[0] for b in APART_BROKEN])
def test_each_rule_of_engine_pools_broken_once(
    facts: Facts, apart: Plan, change: Callable[[Plan], Plan], message: str
) -> None:
    broken = change(apart)
    found = check_plan(broken, facts)
    assert any(message in v.message for v in found), found
    with pytest.raises(InfeasibleError):
        simulate(broken, facts)


def test_only_a_frozen_role_can_swap() -> None:
    """Four 70B models with their states on eight GPUs of 80 GB: 325 GiB per GPU are needed."""
    facts = make_facts("ppo", "llama-2-70b")
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8)
    for role in ("actor", "critic", "reference", "reward"):
        plan = replace_role(plan, role, offload=("swap",))
    assert check_plan(plan, facts) != []


def test_who_gives_the_old_log_probs_decides_whether_the_actor_scores() -> None:
    """With the trainer's, the actor has an inference layout and a pass; with the engine's it has neither."""
    engine = make_facts("grpo", TINY, gpus_per_node=4, work=workload(64, 512, 512, minibatches=2))
    trainer = replace(engine, implementation=replace(engine.implementation, old_log_prob="trainer"))
    plans = [make_plan(facts, (("actor",),), (4,)) for facts in (engine, trainer)]
    assert check_plan(plans[0], engine) == []
    assert check_plan(plans[1], trainer) == []
    assert [v.message for v in check_plan(plans[0], trainer)] == ["actor needs inference layout"]
    assert [v.message for v in check_plan(plans[1], engine)] == ["actor takes no inference layout"]
