"""Protects the plan as a document: a round trip through JSON is the identity, and what it cannot say is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator.plan.plan import (
    RECOMPUTE_LEVELS,
    GenerationLayout,
    ParallelLayout,
    Plan,
    Pool,
    RolePlan,
    placement_name,
)
from tests.builders import make_facts, make_plan, replace_role, with_engine_pool

degree = st.integers(1, 64)
layouts = st.builds(
    ParallelLayout,
    dp=degree,
    tp=degree,
    pp=degree,
    cp=degree,
    ep=degree,
    vpp=degree,
    zero_stage=st.integers(0, 3),
    micro_batch=degree,
    recompute=st.sampled_from(RECOMPUTE_LEVELS),
    sequence_parallel=st.booleans(),
)
engines = st.builds(
    GenerationLayout,
    dp=degree,
    tp=degree,
    pp=degree,
    ep=degree,
    attention_dp=degree,
    max_num_seqs=degree,
    kv_cache_bytes=st.integers(0, 2**40),
)
role_plans = st.builds(
    RolePlan,
    role=st.sampled_from(["actor", "critic"]),
    pool=st.text(max_size=3),
    training=st.none() | layouts,
    inference=st.none() | layouts,
    generation=st.none() | engines,
    generation_pool=st.none() | st.text(max_size=3),
    offload=st.lists(st.sampled_from(["parameters", "optimizer", "swap"]), max_size=3).map(tuple),
)
pools = st.builds(
    Pool,
    name=st.text(max_size=3),
    device=st.text(max_size=5),
    first_gpu=st.integers(0, 100),
    num_gpus=degree,
    roles=st.lists(st.sampled_from(["actor", "critic"]), max_size=3).map(tuple),
)
plans = st.builds(
    Plan,
    algorithm=st.text(max_size=8),
    placement=st.text(max_size=8),
    pools=st.lists(pools, max_size=3).map(tuple),
    roles=st.lists(role_plans, max_size=3).map(tuple),
    resharding=st.sampled_from(["hybridflow", "hybridflow-v", "ds-chat"]),
    steps_in_flight=degree,
    schedule=st.sampled_from(["sync", "one-step-off", "async"]),
    in_flight_updates=st.booleans(),
)


@given(plan=plans)
def test_plan_to_json_to_plan_is_the_identity(plan: Plan) -> None:
    text = plan.model_dump_json()
    assert Plan.model_validate_json(text) == plan
    assert Plan.model_validate_json(text).model_dump_json() == text


def test_lookups() -> None:
    plan = make_plan(make_facts(nodes=2), (("actor", "reference"), ("critic", "reward")), (8, 4))
    assert plan.pool_of("reward").name == "B"
    assert plan.role("critic").pool == "B"
    assert plan.num_gpus == 12
    assert plan.placement == "{actor, reference} {critic, reward}"
    with pytest.raises(KeyError):
        plan.role("cost")
    lost = plan.model_copy(update={"pools": plan.pools[:1]})
    with pytest.raises(KeyError):
        lost.pool_of("critic")


def test_the_pool_that_an_actor_generates_on() -> None:
    plan = with_engine_pool(make_plan(make_facts("grpo", nodes=2), (("actor",),), (8,)), 4)
    assert plan.generation_pool_of("actor").name == "G"
    assert plan.pool_of("actor").name == "A"
    assert plan.role("actor").separate_generation
    assert plan.num_gpus == 12
    own = replace_role(plan, "actor", generation_pool="A")
    assert own.generation_pool_of("actor").name == "A"
    assert not own.role("actor").separate_generation
    assert not replace_role(plan, "actor", generation_pool=None).role("actor").separate_generation


def test_a_plan_that_does_not_say_is_the_papers() -> None:
    """Files written before schedules and pools of engines existed read as what they meant."""
    plan = make_plan(make_facts(), (("actor", "critic", "reference", "reward"),), (8,))
    content = plan.model_dump()
    for name in ("schedule", "steps_in_flight", "in_flight_updates", "resharding"):
        del content[name]
    for role in content["roles"]:
        del role["generation_pool"], role["offload"]
    assert Plan.model_validate(content) == plan


@pytest.mark.parametrize(
    "wrong", [{"schedule": "later"}, {"steps_in_flight": 0}, {"resharding": "slime"}, {"in_flight": True}]
)
def test_schedules_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    plan = make_plan(make_facts(), (("actor", "critic", "reference", "reward"),), (8,))
    with pytest.raises(ValidationError):
        Plan.model_validate({**plan.model_dump(), **wrong})
    with pytest.raises(ValidationError, match="offload"):
        RolePlan.model_validate({"role": "critic", "pool": "A", "offload": ["gradients"]})


def test_num_gpus_is_the_product_of_the_degrees_without_expert_parallelism() -> None:
    assert ParallelLayout(dp=2, tp=4, pp=3, cp=5, ep=2).num_gpus == 120
    assert GenerationLayout(dp=2, tp=4, pp=3, max_num_seqs=1, kv_cache_bytes=0).num_gpus == 24


@pytest.mark.parametrize(
    "wrong",
    [
        {"dp": 0},
        {"dp": 1, "tp": -1},
        {"dp": 1, "zero_stage": 4},
        {"dp": 1, "recompute": "some"},
        {"dp": 1, "x": 1},
        {"dp": 1, "vpp": 0},
    ],
)
def test_layouts_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ParallelLayout.model_validate(wrong)


def test_another_schema_version_is_refused() -> None:
    plan = make_plan(make_facts(), (("actor", "critic", "reference", "reward"),), (8,))
    with pytest.raises(ValidationError, match="schema_version"):
        Plan.model_validate({**plan.model_dump(), "schema_version": 2})


def test_records_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ParallelLayout(dp=1).dp = 2  # type: ignore[misc]


def test_placement_name() -> None:
    assert placement_name((("actor", "critic"), ("reward",))) == "{actor, critic} {reward}"
