"""Protects explanations: shares that add up, waits that are there, flips that a search of everything confirms."""

from dataclasses import replace

import pytest

from mapper.analysis.explain import explain, idle_of, stage_causes
from mapper.analysis.shortlist import make_shortlist
from mapper.analysis.thresholds import changed, scan
from mapper.deadline import NEVER, Deadline
from mapper.execution_mode import ExecutionMode
from mapper.price_families import RESOURCES, scaled
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search.place import placement_of
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, make_plan, workload

ROLES = ("actor", "critic", "reference", "reward")


def network_job(bytes_per_s=18e9):
    """Colocate wins on this network, split on half of it."""
    work = workload(16, 512, 512, minibatches=2)
    return make_facts("ppo", TINY, nodes=2, gpus_per_node=2, inter_node_bytes_per_s=bytes_per_s, work=work)


@pytest.fixture(scope="module")
def flipped():
    facts = network_job()
    best, halved = find_plan(SearchRequest(facts)), find_plan(SearchRequest(network_job(9e9), runners_up=False))
    assert best.plan.placement != halved.plan.placement
    return facts, best


def test_halving_the_network_flips_and_the_threshold_brackets_it(flipped):
    facts, best = flipped
    rivals = tuple(placement_of(r.plan) for r in best.runners_up)
    found = scan(make_shortlist(SearchRequest(facts)), placement_of(best.plan), rivals, NEVER, ("network",))
    (flip,) = found.flips
    assert 0.5 <= flip.wins < flip.holds <= 1.0
    assert flip.wins > 0.95 * flip.holds
    for factor, same in ((flip.holds, True), (flip.wins, False)):
        there = find_plan(SearchRequest(changed(facts, "network", factor), runners_up=False))
        assert (there.plan.placement == best.plan.placement) is same
    assert {frozenset(s) for s in flip.rival} == {frozenset(s) for s in placement_of(there.plan)}


def test_no_time_is_said(flipped):
    facts, best = flipped
    found = scan(
        make_shortlist(SearchRequest(facts)),
        placement_of(best.plan),
        (placement_of(best.runners_up[0].plan),),
        Deadline.after(0.0),
    )
    assert not found.flips and not found.steady and "network" in found.skipped


def test_stage_shares_are_the_slopes_of_the_stage():
    facts = make_facts(nodes=2, gpus_per_node=4)
    plan = make_plan(facts, (ROLES,), (8,), tp=4)
    timeline = simulate(plan, facts)
    causes = stage_causes(facts, plan, timeline)
    assert sum(c.seconds for c in causes) == pytest.approx(timeline.iteration_s)
    for cause in causes:
        assert min(cause.shares.values()) >= 0 and sum(cause.shares.values()) <= 1 + 1e-2
    slower = simulate(plan, scaled(facts, {"host": 1.01})).iteration_s
    host = sum(c.shares["host"] * c.seconds for c in causes)
    assert slower - timeline.iteration_s == pytest.approx(0.01 * host, rel=0.1)


def test_idle_pools_wait_for_what_is_not_done():
    facts = make_facts()
    plan = make_plan(facts, (ROLES[:1], ROLES[1:]), (4, 4), tp=4)
    timeline = simulate(plan, facts)
    waits = {(i.pool, i.waits_for): i.seconds for i in idle_of(facts, plan, timeline)}
    generated = next(s for s in timeline.spans if s.call == "generate_sequences")
    assert waits["B", "generate_sequences"] == pytest.approx(generated.end_s)
    for pool in ("A", "B"):
        busy = sum(s.duration_s for s in timeline.spans if s.pool == pool)
        idle = sum(seconds for (name, _), seconds in waits.items() if name == pool)
        assert busy + idle == pytest.approx(timeline.iteration_s)


def test_the_next_better_configuration_fits_with_the_memory_that_it_lacks():
    facts = make_facts("grpo", "llama-3.2-1b", gpus_per_node=2, memory_bytes=18 * 2**30, work=workload(64, 512, 512))
    best = find_plan(SearchRequest(facts))
    answer = explain(SearchRequest(facts), best.plan, (), budget_s=1.0)
    better = answer.memory[0].better
    assert better is not None and better.short_bytes > 0
    larger = int(facts.memory_capacity_bytes + better.short_bytes + 2**20)
    roomy = replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=larger)))
    plan = best.plan.model_copy(
        update={"roles": tuple(better.entry if e.role == better.entry.role else e for e in best.plan.roles)}
    )
    assert simulate(plan, roomy).iteration_s == pytest.approx(better.iteration_s, rel=1e-9)
    assert better.iteration_s < best.iteration_s


def test_findings_carry_the_numbers_of_the_plan(flipped):
    facts, best = flipped
    answer = explain(SearchRequest(facts), best.plan, best.runners_up, budget_s=1.0)
    assert set(answer.twice_as_fast) == set(RESOURCES)
    assert all(s <= best.iteration_s for s in answer.twice_as_fast.values())
    by_topic = {f.topic: f for f in answer.findings}
    entry = best.plan.role("actor").generation
    own = by_topic["generation degree"].numbers[f"t{entry.tp}_s"]
    spans = {s.call: s.duration_s for s in answer.timeline.spans}
    assert own <= spans["generate_sequences"] + spans["transition"] + 1e-9
    placement = by_topic["placement"].numbers
    assert 0 < placement["busy"] <= 1 and 0 < placement["planned_busy"] <= 1


@pytest.mark.parametrize(
    ("schedule", "memory_gib", "engine_too"), [("sync", 16, True), ("sync", 24, False), ("one-step-off", 18, False)]
)
def test_a_better_layout_of_a_trainer_or_an_engine_apart_fits_with_what_it_lacks(schedule, memory_gib, engine_too):
    """On pools of their own too: what is named runs with that much memory, in the time that is said."""
    facts = make_facts(
        "grpo",
        gpus_per_node=4,
        memory_bytes=memory_gib * 2**30,
        work=workload(2048, 512, 512),
        roles={"actor": "llama-3.2-1b", "reference": "llama-3.2-1b"},
    )
    best = find_plan(SearchRequest(facts, runners_up=False, modes=(ExecutionMode(schedule, dedicated_rollout=True),)))
    answer = explain(SearchRequest(facts), best.plan, (), budget_s=1.0)
    found = [limit.better for limit in answer.memory if limit.better is not None]
    changed_engine = [better.entry.generation != best.plan.role("actor").generation for better in found]
    assert changed_engine == [False, True] if engine_too else changed_engine == [False]
    for better in found:
        larger = int(facts.memory_capacity_bytes + better.short_bytes + 2**20)
        roomy = replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=larger)))
        entries = tuple(better.entry if e.role == better.entry.role else e for e in best.plan.roles)
        plan = best.plan.model_copy(update={"roles": entries})
        assert simulate(plan, roomy).iteration_s == pytest.approx(better.iteration_s, rel=1e-9)
        assert better.iteration_s < best.iteration_s
