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


def settled(tasks, ranks, host=HOST, num_ranks=1):
    return settle(host, {t.name: t.duration_s for t in tasks}, ranks, played(tasks), num_ranks)


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


def test_each_further_rank_costs_before_every_call():
    tasks = [Task("a", "A", 4.0, ()), Task("note", "controller", 1.0, (0,))]
    host = replace(HOST, further_rank_s=0.5)
    assert settled(tasks, {"a": 1, "note": 0}, host, num_ranks=1) == pytest.approx({"a": 4.0, "note": 1.0})
    assert settled(tasks, {"a": 1, "note": 0}, host, num_ranks=3) == pytest.approx({"a": 5.0, "note": 2.0})


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
    cpu, slowed_cpu = (
        replace(f, device=replace(f.device, spec=replace(f.device.spec, kind="cpu", gpus_per_node=2)))
        for f in (facts, slowed)
    )
    alone, beside = (simulate(plan, f).stages for f in (cpu, slowed_cpu))
    assert beside["training"] > 1.3 * alone["training"]
    assert beside["generation"] == alone["generation"], "nobody else computes then"
