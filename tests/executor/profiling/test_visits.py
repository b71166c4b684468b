"""Protects what counts of a measured plan: visits on cores without other work, that repeat; the rest is made again,
whatever was predicted."""

from collections.abc import Callable

import pytest

from executor.profiling.visits import AT_MOST, Made, Visit, calm, median_s, undisturbed, visit_until_calm
from simulator.plan.plan import Plan
from simulator.plan.timeline import Timeline
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload


@pytest.fixture
def measured() -> Callable[[float], Visit]:
    """A visit of three iterations, the median of which takes so long."""
    facts = make_facts("ppo", work=workload(64, 512, 256))
    one = simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8), facts)

    def iterations(seconds: float) -> list[Timeline]:
        return [one.model_copy(update={"iteration_s": s}) for s in (0.5 * seconds, seconds, 9.0 * seconds)]

    return iterations


def test_calm_visits_are_those_that_repeat(measured: Callable[[float], Visit]) -> None:
    """By medians: an iteration that something interrupted spoils no visit. A lucky visit does not count for more."""
    for seconds, kept in {
        (1.3, 1.04, 1.0, 1.06): [1.04, 1.0],
        (0.8, 1.0, 1.04, 1.3): [1.0, 1.04],
        (1.3, 1.0): [1.0],
        (): [],
    }.items():
        assert [median_s(visit) for visit in calm([measured(s) for s in seconds])] == kept


def test_a_disturbed_visit_is_made_again_in_turn(measured: Callable[[float], Visit]) -> None:
    """Of two plans one is slowed twice; the other is visited no more than asked."""
    seconds = {"a": [1.0, 2.0, 1.5, 1.02], "b": [3.0, 3.0]}
    order: list[str] = []

    def visit(plan: Plan) -> Made:
        order.append(plan.placement)
        return Made(measured(seconds[plan.placement].pop(0)), (1.0, 1.0))

    kept = visit_until_calm(_plans("a", "b"), 2, visit)
    assert order == ["a", "b", "a", "b", "a", "a"]
    medians = {name: [median_s(visit) for visit in of_plan.visits] for name, of_plan in kept.items()}
    assert medians == {"a": [1.0, 1.02], "b": [3.0, 3.0]}
    assert {name: (of_plan.disturbed, of_plan.is_calm) for name, of_plan in kept.items()} == {
        "a": (2, True),
        "b": (0, True),
    }


def test_a_machine_without_rest_ends_all_the_same(measured: Callable[[float], Visit]) -> None:
    """What is left is told by few visits, not by a loop without end."""
    slower = iter(range(1, 100))
    kept = visit_until_calm(_plans("a"), 2, lambda plan: Made(measured(float(next(slower))), (1.0, 1.0)))
    assert len(kept["a"].visits) == 1
    assert kept["a"].disturbed == 2 * AT_MOST - 1


def test_visits_on_slowed_cores_do_not_count_although_they_repeat(measured: Callable[[float], Visit]) -> None:
    """Somebody has a core for minutes: what is measured then is the same again and again, and nobody's plan."""
    made = [
        Made(measured(s), (1.0, pace_s))
        for s, pace_s in ((1.5, 2.0), (1.5, 2.1), (1.0, 1.0), (1.51, 2.0), (1.01, 1.02))
    ]
    assert [median_s(visit) for visit in undisturbed(made, 1.0)] == [1.0, 1.01]
    assert undisturbed(made[:2], 1.0) == []


def test_visits_are_made_again_until_cores_are_free(measured: Callable[[float], Visit]) -> None:
    """Of four visits somebody has a core in two; that the first was one of them is known after the second."""
    made = iter([(1.5, 2.0, 2.0), (1.0, 1.0, 1.0), (1.4, 1.0, 2.0), (1.01, 1.05, 1.0)])
    visits = (Made(measured(s), (before, after)) for s, before, after in made)
    kept = visit_until_calm(_plans("a"), 2, lambda plan: next(visits))
    assert [median_s(visit) for visit in kept["a"].visits] == [1.0, 1.01]
    assert (kept["a"].disturbed, kept["a"].is_calm) == (2, True)


def test_where_cores_never_come_free_what_repeats_is_left(measured: Callable[[float], Visit]) -> None:
    """A measurement on a busy machine is worth more than none; that no visit counts is said."""
    kept = visit_until_calm(_plans("a"), 2, lambda plan: Made(measured(1.5), (1.0, 2.0)))
    assert len(kept["a"].visits) == kept["a"].disturbed == 2 * AT_MOST
    assert not kept["a"].is_calm


def _plans(*names: str) -> dict[str, Plan]:
    facts = make_facts("ppo", work=workload(64, 512, 256))
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8)
    return {name: plan.model_copy(update={"placement": name}) for name in names}
