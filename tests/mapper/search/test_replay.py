"""Protects plans played together: each takes what ``simulate`` says alone, and none runs that the checker refuses."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.price_families import with_response
from mapper.search.replay import is_plain, layout_key, play_plans, stacked, with_room
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.plan import Plan
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory
from tests.builders import engine_layout, make_plan, replace_role, tiny_facts, with_engine_pool, workload
from tests.draws import draws

FACTS = tiny_facts("ppo", 8, 30.0)
ROLES = FACTS.dataflow.roles
PARTS = {
    "colocate": ((ROLES,), (4,)),
    "split": ((ROLES[:1] + ROLES[2:3], ROLES[1:2] + ROLES[3:]), (4, 2)),
    "standalone": (tuple((role,) for role in ROLES), (2, 1, 1, 2)),
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Colocated, split or apart; plain, with engines of their own, offloaded, or one that cannot run."""
    sets, sizes = PARTS[draw(st.sampled_from(sorted(PARTS)))]
    tp = draw(st.sampled_from([1, 2])) if 1 not in sizes else 1
    plan = make_plan(FACTS, sets, sizes, tp=tp, slots=draw(st.sampled_from([2, 8])))
    layout = plan.role("critic").training
    assert layout is not None
    changed = draw(st.sampled_from(["plain", "plain", "own", "ahead", "offload", "ds-chat", "too wide"]))
    wide = {"dp": 16} if changed == "too wide" else {"micro_batch": draw(st.integers(1, 4))}
    plan = replace_role(plan, "critic", training=layout.model_copy(update=wide))
    if changed in ("own", "ahead"):
        plan = with_engine_pool(plan, 2, **({"schedule": "one-step-off"} if changed == "ahead" else {}))
    if changed == "offload":
        plan = replace_role(plan, "reward", offload=("parameters",))
    return plan.model_copy(update={"resharding": "ds-chat"}) if changed == "ds-chat" else plan


@settings(max_examples=draws(8))
@given(st.lists(plans(), max_size=6))
def test_together_each_takes_what_it_takes_alone(several: list[Plan]) -> None:
    """Plans that cannot run are none, and hold no other up."""
    alone = [None if check_plan(plan, FACTS) else simulate(plan, FACTS).iteration_s for plan in several]
    assert play_plans(several, FACTS) == alone


def test_plain_is_what_runs_on_its_own_pool_in_turn() -> None:
    plan = make_plan(FACTS, *PARTS["split"])
    assert is_plain(plan)
    assert not is_plain(with_engine_pool(plan, 2))
    assert not is_plain(plan.model_copy(update={"resharding": "ds-chat"}))
    assert not is_plain(replace_role(plan, "reward", offload=("parameters",)))


def test_plans_are_the_same_whatever_their_cache_and_not_whatever_else() -> None:
    plan = make_plan(FACTS, *PARTS["split"])
    engine = plan.role("actor").generation
    assert engine is not None
    more = replace_role(plan, "actor", generation=engine.model_copy(update={"kv_cache_bytes": 7}))
    assert more != plan
    assert layout_key(more) == layout_key(plan)
    others = [
        replace_role(plan, "actor", generation=engine.model_copy(update={"max_num_seqs": 7})),
        replace_role(plan, "reward", offload=("parameters",)),
        make_plan(FACTS, PARTS["split"][0], (2, 2)),
        make_plan(FACTS, *PARTS["colocate"]),
        plan.model_copy(update={"in_flight_updates": True}),
        with_engine_pool(plan, 2),
    ]
    assert len({layout_key(p) for p in (plan, *others)}) == 1 + len(others)


def longer(facts: Facts, factor: float) -> Facts:
    return replace(facts, workload=with_response(facts.workload, factor))


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("own_pool", [False, True])
def test_with_room_an_engine_takes_the_cache_that_the_responses_need(factor: float, own_pool: bool) -> None:
    plan = make_plan(FACTS, *PARTS["split"], slots=4)
    plan = with_engine_pool(plan, 2) if own_pool else plan
    drawn = longer(FACTS, factor)
    engine = with_room(plan, drawn).role("actor").generation
    assert engine is not None
    assert engine == engine_layout(drawn, "actor", engine.dp, 1, slots=4)
    assert layout_key(with_room(plan, drawn)) == layout_key(plan)


def test_where_room_is_short_an_engine_takes_what_is_left_and_the_plan_still_runs() -> None:
    """A hundred sequences of twice the length want more cache than the pool has; the longest one fits."""
    facts = replace(tiny_facts("grpo", 2, 5.2), workload=workload(256, 512, 512, minibatches=2))
    plan = make_plan(facts, (facts.dataflow.roles,), (2,), slots=128)
    assert check_plan(plan, facts) == []
    drawn = longer(facts, 2.0)
    found = with_room(plan, drawn)
    wanted, engine = engine_layout(drawn, "actor", 2, 1, slots=128), found.role("actor").generation
    assert engine is not None
    before = plan.role("actor").generation
    assert before is not None
    assert before.kv_cache_bytes < engine.kv_cache_bytes < wanted.kv_cache_bytes
    peak = pool_memory(found, found.pools[0], drawn)
    assert peak.capacity_bytes - 2 <= peak.used_bytes <= peak.capacity_bytes
    assert check_plan(found, drawn) == []


def test_layouts_of_several_plans_by_column() -> None:
    entries = [make_plan(FACTS, (ROLES,), (4,), tp=tp).role("actor") for tp in (1, 2, 4)]
    found = stacked(entries)
    assert found.training is not None
    assert found.generation is not None
    assert found.inference is None
    assert [found.training.record(i) for i in range(3)] == [entry.training for entry in entries]
    assert found.generation.tp.tolist() == [1, 2, 4]
    assert stacked([]).training is None
