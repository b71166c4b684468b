"""Protects simulate(): the timeline of a plan adds up, repeats to the byte, and never beats the paper's own cost."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmap.text.plan import interval_s, speed_lines
from mapper.problem import set_partitions
from profiles.engine_facts import load_generation_engine
from simulator.cost.role_layouts import layouts_of
from simulator.cost.weight_sync import weight_sync_cost
from simulator.facts import Facts
from simulator.plan.dataflow import STAGES
from simulator.plan.plan import Plan
from simulator.plan.timeline import Timeline
from simulator.play.schedule import play
from simulator.play.simulate import price_calls, simulate
from tests.builders import TINY, make_facts, make_plan, tiny_facts, with_engine_pool, workload
from tests.draws import draws
from tests.paper_cost import paper_cost_s

PPO = ("actor", "critic", "reference", "reward")
SPLIT = (("actor", "reference"), ("critic", "reward"))
BETWEEN = ("vllm@0.3.1", "vllm@0.12")


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


@settings(max_examples=draws(25))
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
    assert paper_cost_s(plan, facts) <= timeline.iteration_s
    missing = timeline.stages["transition"] + timeline.stages["other"]
    assert paper_cost_s(plan, facts) == pytest.approx(timeline.iteration_s - missing)


def test_for_remax_the_papers_cost_is_only_approximately_one() -> None:
    """Scoring the samples overlaps the second generation, which barriers between stages cannot show."""
    facts = tiny("remax")
    standalone = make_plan(facts, (("actor",), ("reference",), ("reward",)), (2, 2, 2))
    timeline = simulate(standalone, facts)
    spans = {s.call: s for s in timeline.spans}
    assert spans["compute_reward"].start_s < spans["generate_sequences:greedy"].end_s
    missing = timeline.stages["transition"] + timeline.stages["other"]
    assert paper_cost_s(standalone, facts) > timeline.iteration_s - missing
    colocated = make_plan(facts, (("actor", "reference", "reward"),), (2,))
    assert paper_cost_s(colocated, facts) <= simulate(colocated, facts).iteration_s


def test_tokens_are_those_of_the_work(facts: Facts, plan: Plan) -> None:
    assert simulate(plan, facts).tokens == 32 * 1024


def test_every_algorithm_runs() -> None:
    for algorithm, roles in (("remax", ("actor", "reference", "reward")), ("grpo", ("actor",)), ("dapo", ("actor",))):
        facts = tiny_facts(algorithm, 2)
        timeline = simulate(make_plan(facts, (roles,), (2,)), facts)
        assert timeline.iteration_s > 0
        assert sum(timeline.stages.values()) == pytest.approx(timeline.iteration_s)


def apart(**changes: object) -> tuple[Facts, Plan]:
    """PPO on four GPUs with engines on two more, in nodes of two."""
    facts = tiny()
    return facts, with_engine_pool(make_plan(facts, (PPO,), (4,)), 2, **changes)


def test_the_transition_to_a_pool_of_engines_is_a_weight_sync() -> None:
    facts, plan = apart()
    engine = layouts_of(plan.role("actor")).generation
    assert engine is not None
    by_hand = weight_sync_cost(facts, TINY, np.asarray([4]), engine, "bf16")
    timeline = simulate(plan, facts)
    spans = {span.call: span for span in timeline.spans}
    assert spans["transition"].duration_s == pytest.approx(float(by_hand.time.s[0]))
    assert spans["transition"].pool == "A"
    assert spans["generate_sequences"].pool == "G"
    assert timeline.num_gpus == 6
    assert set(timeline.memory) == {"A", "G"}


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("schedule", ["one-step-off", "async"])
def test_the_timeline_of_an_overlapped_plan_is_its_closed_form(schedule: str, in_flight: bool) -> None:
    facts, plan = apart(schedule=schedule, in_flight_updates=in_flight, steps_in_flight=2)
    timeline = simulate(plan, facts)
    last = {span.call: span.duration_s for span in timeline.spans}
    generation, transfer = last["generate_sequences"], last["transition"]
    rest = sum(last.values()) - generation - transfer  # one pool and the controller after it: everything in turn
    by_hand = max(generation, transfer + rest) if in_flight else transfer + max(generation, rest)
    assert timeline.iteration_s == pytest.approx(by_hand)
    assert sum(timeline.stages.values()) == pytest.approx(timeline.iteration_s)
    in_turn = simulate(plan.model_copy(update={"schedule": "sync", "in_flight_updates": False}), facts)
    assert in_turn.iteration_s > timeline.iteration_s


def test_the_trainers_own_log_probs_are_a_pass_in_the_layout_it_scores_in() -> None:
    engine = make_facts("grpo", TINY, nodes=5, gpus_per_node=2, work=workload(32, 512, 512, minibatches=2))
    trainer = replace(engine, implementation=replace(engine.implementation, old_log_prob="trainer"))
    keys = [[call.key for call in facts.dataflow.calls] for facts in (engine, trainer)]
    assert [key for key in keys[1] if key not in keys[0]] == ["compute_log_prob"]
    assert keys[1].index("compute_log_prob") == keys[1].index("generate_sequences") + 1
    plan = make_plan(trainer, (("actor",),), (4,))
    scored = plan.role("actor").inference
    assert scored is not None
    larger = plan.model_copy(
        update={
            "roles": (
                plan.role("actor").model_copy(update={"inference": scored.model_copy(update={"micro_batch": 4})}),
            )
        }
    )
    before, after = price_calls(plan, trainer), price_calls(larger, trainer)
    assert float(after["compute_log_prob"].time.s) < float(before["compute_log_prob"].time.s)
    assert float(after["update_actor"].time.s) == float(before["update_actor"].time.s)
    spans = {span.call: span for span in simulate(plan, trainer).spans}
    assert spans["compute_advantage"].start_s >= spans["compute_log_prob"].end_s


def test_a_release_between_two_profiled_ones_is_played_with_both(facts: Facts, plan: Plan) -> None:
    """One that is not profiled takes the nearest one's facts, and the interval holds what the other's would give."""
    between = replace(facts, generation=load_generation_engine("vllm@0.11"))
    found = simulate(plan, between)
    sides = {name: simulate(plan, replace(facts, generation=load_generation_engine(name))) for name in BETWEEN}
    assert found.releases.keys() == {"vllm@0.3.1"}
    assert found.iteration_s == pytest.approx(sides["vllm@0.12"].iteration_s)
    assert found.releases["vllm@0.3.1"] == pytest.approx(sides["vllm@0.3.1"].iteration_s)
    low, high = interval_s(found)
    assert low <= min(found.releases.values()) and max(found.releases.values()) <= high
    narrow = interval_s(sides["vllm@0.12"])
    assert high - low > narrow[1] - narrow[0]
    assert "not profiled" in "\n".join(speed_lines(found)) and "vllm@0.3.1" in "\n".join(speed_lines(found))
    assert not sides["vllm@0.12"].releases
