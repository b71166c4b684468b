"""Protects what ranks of one host cost each other: two neighbours by hand, more ranks than cores, and nobody else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.play.event_queue import Task, run_events
from simulator.play.host_contention import SharedHost, settle, stretched
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, make_plan, workload

HOST = SharedHost(num_cores=2, neighbour_slowdown=1.25)


def played(tasks):
    return lambda durations: run_events([replace(task, duration_s=durations[task.name]) for task in tasks])


def settled(tasks, ranks, host=HOST):
    return settle(host, {t.name: t.duration_s for t in tasks}, ranks, played(tasks))


def on_cpu(facts, **of_engine):
    """The job on one host of two cores."""
    spec = replace(facts.device.spec, kind="cpu", gpus_per_node=2)
    return replace(facts, device=replace(facts.device, spec=spec), training=replace(facts.training, **of_engine))


def test_two_calls_side_by_side_slow_each_other_and_one_alone_does_not():
    tasks = [Task("a", "A", 4.0, ()), Task("b", "B", 4.0, ()), Task("c", "A", 2.0, (0, 1))]
    found = settled(tasks, {"a": 1, "b": 1, "c": 1})
    assert found == pytest.approx({"a": 5.0, "b": 5.0, "c": 2.0})


def test_what_is_left_after_the_neighbour_ended_runs_at_full_speed():
    """Of 8 seconds' work 4 are done beside the other in 5; the other 4 take 4."""
    tasks = [Task("long", "A", 8.0, ()), Task("short", "B", 4.0, ())]
    found = settled(tasks, {"long": 1, "short": 1})
    assert found["short"] == pytest.approx(5.0)
    assert found["long"] == pytest.approx(9.0, rel=0.02)


def test_more_ranks_than_cores_take_turns():
    tasks = [Task(name, name, 1.0, ()) for name in "abcd"]
    assert settled(tasks, dict.fromkeys("abcd", 1)) == pytest.approx(dict.fromkeys("abcd", 2.5))


def test_a_calls_own_ranks_are_in_its_time():
    tasks = [Task("wide", "A", 4.0, ()), Task("note", "controller", 4.0, ())]
    assert settled(tasks, {"wide": 2, "note": 0}) == pytest.approx({"wide": 4.0, "note": 4.0})


def test_each_further_rank_costs_between_calls_and_not_around_an_iteration():
    """Eight calls on one rank are a chain of eight, on a rank for each model one of five: four times between two."""
    facts = make_facts("ppo", TINY, work=workload(32, 128, 128))
    plan = make_plan(facts, (("actor",), ("critic",), ("reference",), ("reward",)), (1, 1, 1, 1))
    without, with_ranks = (simulate(plan, on_cpu(facts, dispatch_rank_s=s)) for s in (0.0, 0.5))
    assert with_ranks.iteration_s == pytest.approx(without.iteration_s + 4 * 3 * 0.5, rel=0.01)
    first = [min(span.end_s for span in t.spans) for t in (without, with_ranks)]
    assert first[0] == first[1]


def test_what_comes_before_a_call_is_not_stretched():
    """Three calls of 2 s on two cores, 1 s of each the controller's: 2 s of work take 3."""
    tasks = [Task(name, name, 3.0, ()) for name in "abc"]
    host = SharedHost(2, 1.0, dispatch_s=1.0)
    assert settled(tasks, dict.fromkeys("abc", 1), host) == pytest.approx(dict.fromkeys("abc", 1.0 + 1.5 * 2.0))
    wide = SharedHost(4, 1.0, dispatch_s=0.5, pool_rank_s=0.5)
    assert settled(tasks, dict.fromkeys("abc", 2), wide) == pytest.approx(dict.fromkeys("abc", 1.0 + 1.5 * 2.0))


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=6), st.floats(1.0, 3.0), st.integers(1, 4))
def test_no_call_gets_faster_in_company(seconds, slowdown, cores):
    tasks = [Task(str(i), f"pool {i % 3}", s, ()) for i, s in enumerate(seconds)]
    records = run_events(tasks)
    found = stretched(SharedHost(cores, slowdown), records, seconds, [1] * len(seconds))
    assert all(now >= alone * (1 - 1e-9) for now, alone in zip(found, seconds, strict=True))


def test_a_call_that_was_in_a_crowd_takes_longer_all_of_it():
    """Three calls on two cores: all of the long one is longer, though for its second half it has a core of its own."""
    fair, crowd = (SharedHost(2, 1.0, crowded_slowdown=x) for x in (1.0, 1.2))
    seconds = [2.0, 2.0, 1.0]
    records = run_events([Task(str(i), f"pool {i}", s, ()) for i, s in enumerate((2.5, 2.5, 1.5))])
    by_turns = stretched(fair, records, seconds, [1, 1, 1])
    assert stretched(crowd, records, seconds, [1, 1, 1]) == pytest.approx([1.2 * s for s in by_turns])
    assert stretched(crowd, records[:2], seconds[:2], [1, 1]) == pytest.approx(seconds[:2])
    assert stretched(crowd, records[:1], seconds[:1], [4]) == seconds[:1], "its own ranks are in its time already"


def test_pools_of_a_cpu_share_it_and_pools_of_gpus_do_not():
    facts = make_facts("ppo", TINY, work=workload(32, 128, 128))
    plan = make_plan(facts, (("actor", "reference"), ("critic", "reward")), (1, 1))
    slowed = replace(facts, training=replace(facts.training, neighbour_slowdown=1.5))
    assert simulate(plan, slowed) == simulate(plan, facts)
    alone, beside = (simulate(plan, on_cpu(f)).stages for f in (facts, slowed))
    assert beside["training"] > 1.3 * alone["training"]
    assert beside["generation"] == alone["generation"], "nobody else computes then"
