"""Protects what waiting for the slowest of several calls costs: Clark's value for two, nothing where nobody waits."""

from dataclasses import replace
from math import hypot, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from simulator.play.event_queue import Task, run_events
from simulator.play.schedule import beside_others
from simulator.play.simulate import price_calls, simulate
from simulator.play.stragglers import with_stragglers
from tests.builders import TINY, make_facts, make_plan, workload

PAIR = [Task("a", "A", 40.0, ()), Task("b", "B", 40.0, ()), Task("both", "A", 5.0, (0, 1))]


def clark_s(a, b, spread):
    """Expected later end of two normal times."""
    apart = hypot(spread * a, spread * b)
    far = (a - b) / apart
    return a * norm.cdf(far) + b * norm.cdf(-far) + apart * norm.pdf(far)


def end_s(tasks):
    return max(record.end_s for record in run_events(tasks))


def test_the_later_of_two_alike_ends_as_much_later_as_clark_says():
    """The expected maximum of two normal numbers of one mean lies their deviation over the root of pi above it."""
    found = with_stragglers(PAIR, [0.1, 0.1, 0.1])
    assert clark_s(40.0, 40.0, 0.1) == pytest.approx(40.0 + 4.0 / sqrt(pi))
    assert end_s(found) == pytest.approx(clark_s(40.0, 40.0, 0.1) + 5.0, rel=5e-3)
    assert sorted(x.duration_s - y.duration_s for x, y in zip(found, PAIR, strict=True))[:2] == [0.0, 0.0]


def test_the_end_of_an_iteration_waits_for_all():
    assert end_s(with_stragglers(PAIR[:2], [0.1, 0.1])) == pytest.approx(clark_s(40.0, 40.0, 0.1), rel=5e-3)


def test_who_ends_long_before_another_is_not_waited_for():
    tasks = [replace(PAIR[0], duration_s=10.0), *PAIR[1:]]
    assert end_s(with_stragglers(tasks, [0.1, 0.1, 0.1])) == pytest.approx(45.0)


def test_what_came_before_both_is_shared_and_makes_nobody_wait():
    """Both follow one call that varies: it moves both."""
    tasks = [Task("first", "A", 100.0, ()), Task("a", "A", 5.0, (0,)), Task("b", "B", 5.0, (0,))]
    assert end_s(with_stragglers(tasks, [0.2, 0.0, 0.0])) == pytest.approx(105.0)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 0.5)), min_size=1, max_size=6))
def test_nothing_gets_shorter_and_calls_in_turn_stay_as_they_are(calls):
    apart = [Task(str(i), f"pool {i % 3}", s, ()) for i, (s, _) in enumerate(calls)]
    spreads = [spread for _, spread in calls]
    assert all(
        now.duration_s >= before.duration_s - 1e-9
        for now, before in zip(with_stragglers(apart, spreads), apart, strict=True)
    )
    in_turn = [replace(task, resource="pool") for task in apart]
    assert [task.duration_s for task in with_stragglers(in_turn, spreads)] == pytest.approx([s for s, _ in calls])


def test_pools_of_a_cpu_wait_for_the_slower_and_pools_of_gpus_repeat():
    """Both updates of a split run at once; of one pool they come in turn, and their deviations even out."""
    facts = make_facts("ppo", TINY, work=workload(32, 128, 128))
    varies = replace(facts, training=replace(facts.training, neighbour_spread=0.1))
    cpu, varies_on_cpu = (
        replace(f, device=replace(f.device, spec=replace(f.device.spec, kind="cpu"))) for f in (facts, varies)
    )
    split = make_plan(facts, (("actor", "reference"), ("critic", "reward")), (1, 1))
    one = make_plan(facts, (("actor", "reference", "critic", "reward"),), (2,))
    assert simulate(split, varies) == simulate(split, facts)
    assert simulate(one, varies_on_cpu).iteration_s == pytest.approx(simulate(one, cpu).iteration_s)
    updates = [span.duration_s for span in simulate(split, cpu).spans if span.stage == "training"]
    assert simulate(split, varies_on_cpu).stages["training"] == pytest.approx(clark_s(*updates, 0.1), rel=2e-3)
    alone_s = {key: float(call.time.s) for key, call in price_calls(split, cpu).items()}
    assert beside_others(split, varies_on_cpu, alone_s) == beside_others(split, cpu, alone_s), "on average as long"
