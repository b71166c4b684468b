"""Protects what counts of a measured plan: visits on cores without other work, that repeat; the rest is made again,
whatever was predicted."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from executor.profiling.visits import AT_MOST, LEAST, Made, Visit, calm, median_s, undisturbed, visit_until_calm
from simulator.plan.plan import Plan
from simulator.plan.timeline import Timeline
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload

FREE, SLOW = (1.0,) * (LEAST + 3), (2.0,) * (LEAST + 3)
"""The cores' pace around each of ``LEAST + 2`` iterations."""
FOUR = ((1.5, SLOW), (1.0, FREE), (1.4, (1.0, 1.0, 1.0, *SLOW[3:])), (1.01, FREE))
"""Seconds of visits: the first on slow cores, the third while they became slow."""


@pytest.fixture
def measured() -> Callable[[float], Visit]:
    """A visit of ``LEAST + 2`` iterations, the median of which takes so long."""
    facts = make_facts("ppo", work=workload(64, 512, 256))
    one = simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8), facts)

    def iterations(seconds: float) -> list[Timeline]:
        return [one.model_copy(update={"iteration_s": s}) for s in (0.5 * seconds, *[seconds] * LEAST, 9.0 * seconds)]

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
        return Made(measured(seconds[plan.placement].pop(0)), FREE)

    kept = visit_until_calm(_plans("a", "b"), 2, visit).of
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
    kept = visit_until_calm(_plans("a"), 2, lambda plan: Made(measured(float(next(slower))), FREE)).of
    assert len(kept["a"].visits) == 1
    assert kept["a"].disturbed == 2 * AT_MOST - 1


def test_iterations_count_between_two_looks_at_free_cores(measured: Callable[[float], Visit]) -> None:
    """Somebody has a core during the third and fourth: the second and fifth end or start with it."""
    made = Made(measured(1.0), (1.0, 1.1, 1.0, 1.7, 1.8, 1.0, 1.0, 1.0))
    assert made.at(1.0) == [made.visit[i] for i in (0, 1, 5, 6)]
    assert made.at(1.75) == [made.visit[3]], "a profile of such cores says nothing of free ones"


def test_visits_on_slowed_cores_do_not_count_although_they_repeat(measured: Callable[[float], Visit]) -> None:
    """Somebody has a core for minutes: what is measured then is the same again and again, and nobody's plan."""
    made = [
        Made(measured(s), paces) for s, paces in ((1.5, SLOW), (1.5, SLOW), (1.0, FREE), (1.51, SLOW), (1.01, FREE))
    ]
    assert [median_s(visit) for visit in undisturbed(made, 1.0)] == [1.0, 1.01]
    assert undisturbed(made[:2], 1.0) == []
    few = Made(measured(1.0), FREE[:LEAST] + SLOW[LEAST:])
    assert undisturbed([few], 1.0) == [], "hardly an iteration of it was on free cores"


def test_visits_are_made_again_until_cores_are_free(measured: Callable[[float], Visit]) -> None:
    """That the first of four was on slow cores is known after the second."""
    visits = iter([Made(measured(s), paces) for s, paces in FOUR])
    found = visit_until_calm(_plans("a"), 2, lambda plan: next(visits))
    assert [median_s(visit) for visit in found.of["a"].visits] == [1.0, 1.01]
    assert (found.of["a"].disturbed, found.of["a"].is_calm, found.pace_s) == (2, True, 1.0)


def test_the_pace_of_a_profile_says_what_counts(measured: Callable[[float], Visit]) -> None:
    """Of a machine whose cores were never so fast, or never so slow, nothing does."""
    for pace_s, is_calm in ((1.1, True), (0.5, False), (4.0, False)):
        visits = iter([Made(measured(s), paces) for s, paces in FOUR] * AT_MOST)
        found = visit_until_calm(_plans("a"), 2, partial(_following, visits), pace_s)
        assert (found.pace_s, found.of["a"].is_calm) == (pace_s, is_calm)


def test_where_cores_never_come_free_what_repeats_is_left(measured: Callable[[float], Visit]) -> None:
    """A measurement on a busy machine is worth more than none; that no visit counts is said."""
    changing = (1.0, 2.0) * (LEAST + 2)
    kept = visit_until_calm(_plans("a"), 2, lambda plan: Made(measured(1.5), changing[: LEAST + 3])).of
    assert len(kept["a"].visits) == kept["a"].disturbed == 2 * AT_MOST
    assert not kept["a"].is_calm


def _following(visits: Iterator[Made], plan: Plan) -> Made:
    return next(visits)


def _plans(*names: str) -> dict[str, Plan]:
    facts = make_facts("ppo", work=workload(64, 512, 256))
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8)
    return {name: plan.model_copy(update={"placement": name}) for name in names}
