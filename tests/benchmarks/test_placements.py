"""Protects how placements are compared: what a calibration learns from is of all rounds, and drift is told."""

import pytest

from benchmarks.placements import apart, changes_pace, spread_over, stages_of, swapped
from executor.profiling.visits import Kept
from simulator.calibration.factors import without_dispatch
from simulator.plan.timeline import Timeline
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload


def test_what_is_learned_from_is_of_every_visit() -> None:
    """Ten of five visits of twelve: two of each."""
    taken = spread_over(range(60), 10)
    assert len(taken) == 10
    assert [sum(i // 12 == part for i in taken) for part in range(5)] == [2, 2, 2, 2, 2]
    assert spread_over(range(4), 10) == [0, 1, 2, 3]


def test_visits_of_a_machine_that_changed_lie_apart() -> None:
    assert apart([[1.0, 1.0], [1.1, 1.1]]) == pytest.approx(0.1)
    assert apart([[1.0, 2.0], [1.0, 2.0]]) == 0.0, "iterations that differ are no change"


def test_order_counts_beyond_the_spread() -> None:
    fast = {"placement": "a", "predicted_s": 2.0, "measured_s": 1.0, "low_s": 0.9, "high_s": 1.1}
    slow = {"placement": "b", "predicted_s": 1.0, "measured_s": 2.0, "low_s": 1.9, "high_s": 2.1}
    assert swapped([fast, slow]) == [("a", "b")]
    assert swapped([fast, slow | {"low_s": 1.05}]) == []


def test_a_stage_that_is_far_off_counts_unless_its_visits_lie_apart() -> None:
    """Iterations that take what they were priced at, but for one stage: twice as long always, or in one visit alone."""
    facts = make_facts("ppo", work=workload(64, 512, 256))
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8)
    priced = simulate(plan, without_dispatch(facts)).model_copy(update={"source": "measured"})

    def with_training(times: float) -> Timeline:
        stages = priced.stages | {"training": times * priced.stages["training"]}
        longer = stages["training"] - priced.stages["training"]
        return priced.model_copy(update={"stages": stages, "iteration_s": priced.iteration_s + longer})

    def told(*visits: float) -> dict[str, tuple[bool, bool]]:
        found = stages_of("all", plan, facts, [[with_training(times)] for times in visits])
        return {stage["stage"]: (stage["far"], stage["disturbed"]) for stage in found}

    assert not any(far for far, _ in told(1.0, 1.0, 1.0).values())
    assert told(2.0, 2.0, 2.0)["training"] == (True, False)
    assert told(2.0, 2.0, 1.0)["training"] == (True, True)


def test_cores_at_another_pace_than_the_profiles_are_told_by_looks_at_them() -> None:
    assert not changes_pace(Kept([], 0, 1.1, 0.1), 1.0)
    assert changes_pace(Kept([], 0, 1.1, 0.2), 1.0), "they changed while they were looked at"
    assert changes_pace(Kept([], 0, 0.7, 0.0), 1.0), "they were free, and shared in the profile"
