"""Protects simulate(): the timeline of a plan adds up, repeats to the byte, and never beats the paper's own cost."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.problem import set_partitions
from simulator.dataflow import STAGES
from simulator.facts import Facts
from simulator.plan import Plan
from simulator.simulate import d_cost, play, price_calls, simulate
from simulator.timeline import Timeline
from tests.builders import TINY, make_facts, make_plan, tiny_facts, workload

PPO = ("actor", "critic", "reference", "reward")
SPLIT = (("actor", "reference"), ("critic", "reward"))


def tiny(algorithm: str = "ppo", minibatches: int = 2) -> Facts:
    return make_facts(algorithm, TINY, nodes=5, gpus_per_node=2, work=workload(32, 512, 512, minibatches=minibatches))


@pytest.fixture
def facts() -> Facts:
    return tiny()


@pytest.fixture
def plan(facts: Facts) -> Plan:
    return make_plan(facts, SPLIT, (4, 2))


def test_one_span_per_call_in_call_order(facts: Facts, plan: Plan) -> None:
    timeline = simulate(plan, facts)
    assert [s.call for s in timeline.spans] == [c.key for c in facts.dataflow.calls]
    pools = {s.call: s.pool for s in timeline.spans}
    assert pools["update_actor"] == pools["compute_ref_log_prob"] == "A"
    assert pools["update_critic"] == pools["compute_reward"] == "B"
    assert pools["compute_advantage"] == "controller"
    assert timeline.num_gpus == 6
    assert timeline.source == "simulated"


def test_stages_and_critical_spans_add_up_to_the_iteration(facts: Facts, plan: Plan) -> None:
    timeline = simulate(plan, facts)
    assert set(timeline.stages) == set(STAGES)
    assert sum(timeline.stages.values()) == pytest.approx(timeline.iteration_s)
    critical = [s for s in timeline.spans if s.critical]
    assert sum(s.duration_s for s in critical) == pytest.approx(timeline.iteration_s)
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(critical))
    assert max(s.end_s for s in timeline.spans) == timeline.iteration_s
    assert sum(timeline.basis.values()) == pytest.approx(1.0)
    assert set(timeline.memory) == {"A", "B"}


def test_spans_last_as_long_as_their_price(facts: Facts, plan: Plan) -> None:
    prices = price_calls(plan, facts)
    for span in simulate(plan, facts).spans:
        assert span.duration_s == pytest.approx(float(prices[span.call].time.s))
        assert max(span.compute_s, span.comm_s) <= span.duration_s * (1 + 1e-9)
        assert span.duration_s <= (span.compute_s + span.comm_s) * (1 + 1e-9)


def test_spans_start_where_the_event_queue_says(facts: Facts, plan: Plan) -> None:
    durations = {key: float(call.time.s) for key, call in price_calls(plan, facts).items()}
    pools = {entry.role: entry.pool for entry in plan.roles} | {"controller": "controller"}
    records = play(facts.dataflow, durations, pools)
    assert [(s.start_s, s.end_s) for s in simulate(plan, facts).spans] == [(r.start_s, r.end_s) for r in records]


def test_the_same_plan_gives_the_same_bytes(facts: Facts, plan: Plan) -> None:
    first = simulate(plan, facts).model_dump_json()
    assert simulate(Plan.model_validate_json(plan.model_dump_json()), tiny()).model_dump_json() == first
    assert Timeline.model_validate_json(first).model_dump_json() == first


@st.composite
def placements(draw: st.DrawFn, roles: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]:
    partition = draw(st.sampled_from(list(set_partitions(roles))))
    return partition, tuple(2 for _ in partition)


@settings(max_examples=25)
@given(
    at=st.sampled_from([("ppo", PPO), ("safe-rlhf", (*PPO, "cost"))]).flatmap(
        lambda job: st.tuples(st.just(job[0]), placements(job[1]))
    ),
    minibatches=st.sampled_from([1, 4]),
)
def test_the_papers_cost_is_a_lower_bound_where_stages_are_barriers(
    at: tuple[str, tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]], minibatches: int
) -> None:
    """It has no transition and no controller, and a barrier after each stage is what PPO and Safe-RLHF have anyway."""
    algorithm, (partition, sizes) = at
    facts = tiny(algorithm, minibatches)
    plan = make_plan(facts, partition, sizes)
    timeline = simulate(plan, facts)
    assert d_cost(plan, facts) <= timeline.iteration_s
    missing = timeline.stages["transition"] + timeline.stages["other"]
    assert d_cost(plan, facts) == pytest.approx(timeline.iteration_s - missing)


def test_for_remax_the_papers_cost_is_only_approximately_one() -> None:
    """Scoring the samples overlaps the second generation, which barriers between stages cannot show."""
    facts = tiny("remax")
    standalone = make_plan(facts, (("actor",), ("reference",), ("reward",)), (2, 2, 2))
    timeline = simulate(standalone, facts)
    spans = {s.call: s for s in timeline.spans}
    assert spans["compute_reward"].start_s < spans["generate_sequences:greedy"].end_s
    missing = timeline.stages["transition"] + timeline.stages["other"]
    assert d_cost(standalone, facts) > timeline.iteration_s - missing
    colocated = make_plan(facts, (("actor", "reference", "reward"),), (2,))
    assert d_cost(colocated, facts) <= simulate(colocated, facts).iteration_s


def test_tokens_are_those_of_the_work(facts: Facts, plan: Plan) -> None:
    assert simulate(plan, facts).tokens == 32 * 1024


def test_every_algorithm_runs() -> None:
    for algorithm, roles in (("remax", ("actor", "reference", "reward")), ("grpo", ("actor",)), ("dapo", ("actor",))):
        facts = tiny_facts(algorithm, 2)
        timeline = simulate(make_plan(facts, (roles,), (2,)), facts)
        assert timeline.iteration_s > 0
        assert sum(timeline.stages.values()) == pytest.approx(timeline.iteration_s)
