"""Protects findings: every number is one of a plan simulated with that change, and nothing is said without one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mapper.analysis.findings import Finding, findings
from mapper.candidates.layouts import generation_layouts
from mapper.result import RunnerUp
from simulator.cost.kv_budget import with_kv_budget
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, make_plan, replace_role, tiny_facts, with_engine_pool, workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.facts import Facts
    from simulator.plan.plan import Plan

ROLES = ("actor", "critic", "reference", "reward")
FACTS = make_facts("ppo", TINY, nodes=2, gpus_per_node=4, work=workload(64, 512, 512, minibatches=2))


def found(facts: Facts, plan: Plan, *others: Plan) -> dict[str, list[Finding]]:
    """Findings by topic, with plans of other placements beside."""
    beside = [RunnerUp(other.placement, simulate(other, facts).iteration_s, other) for other in others]
    out: dict[str, list[Finding]] = {}
    for finding in findings(facts, plan, simulate(plan, facts), beside):
        out.setdefault(finding.topic, []).append(finding)
    return out


def generation_s(facts: Facts, plan: Plan) -> float:
    spans = {span.call: span.duration_s for span in simulate(plan, facts).spans}
    return spans["generate_sequences"] + spans["transition"]


def best_by_degree(facts: Facts, plan: Plan) -> dict[int, float]:
    """Seconds of generation and transition in the best engine of each tensor degree that the checker accepts."""
    shape, gpus = facts.roles["actor"].shape, plan.pool_of("actor").num_gpus
    rows = with_kv_budget(facts, shape, generation_layouts(facts, shape, gpus))
    best: dict[int, float] = {}
    for i in range(len(rows)):
        other = replace_role(plan, "actor", generation=rows.record(i))
        if rows.pp[i] == 1 and not check_plan(other, facts):
            tp = int(rows.tp[i])
            best[tp] = min(best.get(tp, float("inf")), generation_s(facts, other))
    return best


@pytest.mark.parametrize(("memory_gib", "degrees"), [(80.0, {1, 2, 4}), (2.6, {2, 4})])
def test_generation_in_each_degree_that_fits_is_that_of_the_best_plan_with_it(
    memory_gib: float, degrees: set[int]
) -> None:
    facts = tiny_facts("ppo", 4, memory_gib)
    plan = make_plan(facts, (ROLES,), (4,), tp=4)
    best = best_by_degree(facts, plan)
    (finding,) = found(facts, plan)["generation degree"]
    assert finding.numbers == pytest.approx({f"t{tp}_s": s for tp, s in best.items()} | {"planned": 4})
    assert set(best) == degrees
    assert ("t1 does not fit" in finding.sentence) is (1 not in degrees)
    assert finding.sentence.startswith(f"generation with its transition takes {best[4]:,.1f} s on t4")
    assert "the tensor parallelism of training" in finding.sentence


def test_one_degree_that_fits_is_nothing_to_compare() -> None:
    facts = tiny_facts("ppo", 4, 2.4)
    plan = make_plan(facts, (ROLES,), (4,), tp=4)
    assert set(best_by_degree(facts, plan)) == {4}
    assert "generation degree" not in found(facts, plan)


def test_engines_on_gpus_of_their_own_have_no_degree_to_compare() -> None:
    plan = with_engine_pool(make_plan(FACTS, (ROLES,), (4,)), 4)
    assert "generation degree" not in found(FACTS, plan)


def exposed_share(facts: Facts, plan: Plan, call: str) -> float:
    """What of a call neither compute nor anything beside it fills."""
    span = next(span for span in simulate(plan, facts).spans if span.call == call)
    return (span.duration_s - span.compute_s) / span.duration_s


def test_the_share_of_communication_is_that_of_plans_on_more_gpus() -> None:
    """The longest update, in as many ranks, twice and four times as many, the batch of 32 fixed."""
    facts = replace(FACTS, group=replace(FACTS.group, nodes=4))
    plan = make_plan(facts, (ROLES,), (4,))
    (finding,) = found(facts, plan)["data-parallel traffic"]
    spans = [span for span in simulate(plan, facts).spans if span.stage == "training"]
    call = max(spans, key=lambda span: span.duration_s).call
    assert f"communication that nothing hides in {call}" in finding.sentence
    shares = {f"d{n}": exposed_share(facts, make_plan(facts, (ROLES,), (n,)), call) for n in (4, 8, 16)}
    assert finding.numbers == pytest.approx(shares)
    assert shares["d16"] > shares["d4"], "Fig 12: it grows with the GPUs"


def test_degrees_stop_where_a_rank_would_have_no_sample() -> None:
    """Sixteen samples in two minibatches: eight ranks at most."""
    facts = make_facts("ppo", TINY, nodes=2, gpus_per_node=4, work=workload(16, 512, 512, minibatches=2))
    (finding,) = found(facts, make_plan(facts, (ROLES,), (4,)))["data-parallel traffic"]
    assert set(finding.numbers) == {"d4", "d8"}
    assert "data-parallel traffic" not in found(facts, make_plan(facts, (ROLES,), (8,)))


SPLIT = make_plan(FACTS, (ROLES[:1] + ROLES[2:3], ROLES[1:2] + ROLES[3:]), (4, 2))
COLOCATED = make_plan(FACTS, (ROLES,), (8,))


@pytest.mark.parametrize(("plan", "other"), [(COLOCATED, SPLIT), (SPLIT, COLOCATED)])
def test_another_placement_is_compared_stage_by_stage(plan: Plan, other: Plan) -> None:
    (finding,) = found(FACTS, plan, other)["placement"]
    mine, theirs = simulate(plan, FACTS), simulate(other, FACTS)
    slower = theirs.iteration_s - mine.iteration_s
    assert finding.numbers["slower_s"] == pytest.approx(slower)
    by_stage = {name: v for name, v in finding.numbers.items() if name.endswith("_s") and name != "slower_s"}
    assert sum(by_stage.values()) == pytest.approx(slower), "stages add up to the iteration"
    assert by_stage["generation_s"] == pytest.approx(theirs.stages["generation"] - mine.stages["generation"])
    word = "slower" if slower >= 0 else "faster"
    assert finding.sentence.startswith(f"{other.placement} is {abs(slower):,.1f} s {word}: its GPUs work ")


def test_gpus_of_one_pool_work_but_for_the_controller() -> None:
    """Of two pools the one of 4 GPUs counts twice as much as the one of 2."""
    (finding,) = found(FACTS, COLOCATED, SPLIT)["placement"]
    mine, theirs = simulate(COLOCATED, FACTS), simulate(SPLIT, FACTS)
    waits = sum(span.duration_s for span in mine.spans if span.role == "controller" and span.critical)
    assert finding.numbers["planned_busy"] == pytest.approx(1 - waits / mine.iteration_s)
    busy = {name: sum(s.duration_s for s in theirs.spans if s.pool == name) for name in ("A", "B")}
    assert finding.numbers["busy"] == pytest.approx((4 * busy["A"] + 2 * busy["B"]) / 6 / theirs.iteration_s)


def actors_gpus(facts: Facts, plan: Plan, *others: Plan) -> Sequence[Finding]:
    return found(facts, plan, *others).get("actor's GPUs", [])


def test_the_actors_gpus_are_those_of_the_first_plan_that_has_several_pools() -> None:
    (own,) = actors_gpus(FACTS, SPLIT)
    assert own.numbers == {"actor": 4, "critic reward": 2}
    assert own.sentence == "the plan gives 4 GPUs to actor, reference, 2 to critic, reward"
    (of_other,) = actors_gpus(FACTS, COLOCATED, SPLIT)
    assert of_other.numbers == own.numbers
    assert of_other.sentence.startswith(f"the best {SPLIT.placement} gives 4 GPUs to actor")
    assert actors_gpus(FACTS, COLOCATED) == []


def test_a_finding_is_left_out_where_there_is_nothing_to_show() -> None:
    """One GPU: no other degree, no other rank, no other plan."""
    facts = tiny_facts("grpo", 1, 60.0)
    alone = replace(facts, workload=workload(2, 64, 64, minibatches=2))
    assert found(alone, make_plan(alone, (alone.dataflow.roles,), (1,))) == {}
