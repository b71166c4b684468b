"""What a plan holds at full length, what it must hold in a search, and the headroom that the search leaves."""

from dataclasses import replace

import pytest

from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.workload import LengthDistribution
from simulator.cost.token_quantiles import ALWAYS, RARE, TYPICAL
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.full_length import RAREST, peak_memory
from simulator.plan.plan import Plan
from simulator.pool_memory import pool_memory
from tests.builders import TINY, make_facts, make_plan, replace_role, workload

TAIL = LengthDistribution("lognormal", 400.0, 4096)


def _facts(response: int | LengthDistribution = TAIL, memory_gib: float = 80.0, headroom: float = 0.0) -> Facts:
    facts = make_facts(
        "grpo",
        TINY,
        gpus_per_node=4,
        memory_bytes=int(memory_gib * 2**30),
        reserve_bytes=1e9,
        work=workload(64, 512, response, minibatches=2),
    )
    return replace(facts, memory_headroom=headroom)


def _plan(facts: Facts, micro_batch: int = 8) -> Plan:
    plan = make_plan(facts, (("actor",),), (4,), slots=1)
    training = plan.role("actor").training
    assert training is not None
    return replace_role(plan, "actor", training=training.model_copy(update={"micro_batch": micro_batch}))


def test_fixed_lengths_are_always_at_full_length() -> None:
    facts = _facts(512)
    plan = _plan(facts)
    assert peak_memory(plan, plan.pools[0], facts) == pool_memory(plan, plan.pools[0], facts)


def test_a_plan_that_holds_the_typical_runs_and_says_how_rarely_it_does_not() -> None:
    facts = _facts()
    plan = _plan(facts)
    typical, rare, full = (pool_memory(plan, plan.pools[0], facts, x).used_bytes for x in (TYPICAL, 0.99, ALWAYS))
    assert typical < rare < full
    between = _facts(memory_gib=rare / 2**30)
    peak = peak_memory(plan, plan.pools[0], between)
    assert check_plan(plan, between) == []
    assert (peak.used_bytes, peak.full_length_bytes) == (typical, full)
    assert peak.one_in_exceeds == pytest.approx(100, rel=0.05)
    roomy = peak_memory(plan, plan.pools[0], _facts())
    assert roomy.one_in_exceeds is None
    assert check_plan(plan, _facts(memory_gib=(typical - 2**20) / 2**30)) != []


def test_rarer_than_lengths_are_known_is_said_as_such() -> None:
    facts = _facts()
    plan = _plan(facts)
    just_short = pool_memory(plan, plan.pools[0], facts, ALWAYS).used_bytes - 2**20
    assert peak_memory(plan, plan.pools[0], _facts(memory_gib=just_short / 2**30)).one_in_exceeds == RAREST


@pytest.mark.parametrize("memory_gib", [3.5, 5.0])
def test_the_search_leaves_the_headroom_free_and_holds_rare_micro_batches_in_it(memory_gib: float) -> None:
    facts = _facts(memory_gib=memory_gib, headroom=0.1)
    result = find_plan(SearchRequest(facts, runners_up=False))
    for pool in result.plan.pools:
        assert pool_memory(result.plan, pool, facts).used_bytes <= facts.memory_usable_bytes
        assert pool_memory(result.plan, pool, facts, RARE).used_bytes <= facts.memory_capacity_bytes


def test_a_plan_by_hand_may_use_the_headroom_up() -> None:
    facts = _facts(512)
    plan = _plan(facts)
    used = pool_memory(plan, plan.pools[0], facts).used_bytes
    tight = _facts(512, memory_gib=used * 1.02 / 2**30, headroom=0.05)
    assert check_plan(plan, tight) == []
    peak = pool_memory(plan, plan.pools[0], tight)
    assert peak.usable_bytes is not None and peak.usable_bytes < peak.used_bytes < peak.capacity_bytes


def test_engines_take_what_is_left_and_no_more_than_their_sequences_fill() -> None:
    facts = _facts(memory_gib=6.0, headroom=0.1)
    result = find_plan(SearchRequest(facts, runners_up=False))
    engine = result.plan.role("actor").generation
    assert engine is not None
    pool = result.plan.generation_pool_of("actor")
    per_token = 2 * TINY.num_kv_heads * TINY.head_dim * TINY.num_layers * 2 / engine.tp / engine.pp
    most = min(engine.max_num_seqs, -(-64 // engine.dp)) * per_token * (512 + 4096)
    filled = pool_memory(result.plan, pool, facts).used_bytes > facts.memory_usable_bytes - 2**20
    assert filled or engine.kv_cache_bytes == pytest.approx(most, rel=1e-6)
