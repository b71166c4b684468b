"""Protects what is measured of a plan: iterations at the pace of a profile's cores, in visits that repeat; the rest is
made again, whatever was predicted."""

from collections.abc import Callable

import pytest

from executor.profiling.visits import (
    AT_MOST,
    FOLLOWS,
    WARMUP,
    Made,
    PaceWatch,
    Visit,
    between,
    calm,
    median_s,
    scaled,
    visit_until_calm,
)
from simulator.plan.plan import Plan
from simulator.plan.timeline import Counts, Timeline
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload

NUM = 5
FREE = (1.0,) * (NUM + 1)
"""The cores' pace around each of ``NUM`` iterations."""


@pytest.fixture
def one() -> Timeline:
    facts = make_facts("ppo", work=workload(64, 512, 256))
    return simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8), facts)


@pytest.fixture
def measured(one: Timeline) -> Callable[[float], Visit]:
    """A visit of ``NUM`` iterations of one call, the median of which takes so long."""

    def iteration(seconds: float) -> Timeline:
        call = one.spans[0].model_copy(update={"start_s": 0.0, "end_s": seconds, "critical": True})
        return one.model_copy(update={"iteration_s": seconds, "stages": {call.stage: seconds}, "spans": (call,)})

    def iterations(seconds: float) -> list[Timeline]:
        return [iteration(s) for s in (0.5 * seconds, *[seconds] * (NUM - 2), 9.0 * seconds)]

    return iterations


def test_visits_that_repeat_are_kept(measured: Callable[[float], Visit]) -> None:
    """By medians: an iteration that something interrupted spoils no visit. A lucky visit does not count for more."""
    for seconds, kept in {
        (1.3, 1.04, 1.0, 1.12): [1.04, 1.0],
        (0.8, 1.0, 1.04, 1.3): [1.0, 1.04],
        (1.3, 1.0): [1.0],
        (): [],
    }.items():
        assert [median_s(visit) for visit in calm([measured(s) for s in seconds])] == kept


def test_a_visit_that_does_not_repeat_is_made_again_in_turn(measured: Callable[[float], Visit]) -> None:
    """Of two plans one is slowed twice; the other is visited no more than asked."""
    seconds = {"a": [1.0, 2.0, 1.5, 1.02], "b": [3.0, 3.0]}
    order: list[str] = []

    def visit(plan: Plan) -> Made:
        order.append(plan.placement)
        return Made(measured(seconds[plan.placement].pop(0)), FREE)

    kept = visit_until_calm(_plans("a", "b"), 2, visit, 1.0)
    assert order == ["a", "b", "a", "b", "a", "a"]
    medians = {name: [median_s(visit) for visit in of_plan.visits] for name, of_plan in kept.items()}
    assert medians == {"a": [1.0, 1.02], "b": [3.0, 3.0]}
    assert {name: of_plan.others for name, of_plan in kept.items()} == {"a": 2, "b": 0}


def test_a_machine_without_rest_ends_all_the_same(measured: Callable[[float], Visit]) -> None:
    """What is left is told by few visits, not by a loop without end."""
    slower = iter(range(1, 100))
    kept = visit_until_calm(_plans("a"), 2, lambda plan: Made(measured(float(next(slower))), FREE), 1.0)
    assert len(kept["a"].visits) == 1
    assert kept["a"].others == 2 * AT_MOST - 1


def test_iterations_are_brought_to_the_pace_of_a_profile(one: Timeline) -> None:
    """By the steps before and after each: a core that is slow in the third alone, and one that becomes so."""
    made = Made([one] * 4, (1.0, 1.0, 2.0, 2.0, 1.0))
    assert made.of_each_s == [1.0, 1.5, 2.0, 1.5]
    assert made.at(3.0) == [scaled(one, 3.0 / own) for own in made.of_each_s]


def test_calls_follow_a_core_and_what_lies_between_them_in_part(one: Timeline) -> None:
    """Stages add up to the iteration, spans keep their share of it, on the device too, and what is no time stays."""
    counts = Counts(bytes_in=7, bytes_out=0, host_bytes=3, host_s=2.0, peak_memory_bytes=5, device_s=4.0)
    one = one.model_copy(update={"spans": tuple(s.model_copy(update={"counts": counts}) for s in one.spans)})
    half = scaled(one, 0.5)
    calls_s = one.iteration_s - one.stages["other"]
    assert half.iteration_s == pytest.approx(sum(half.stages.values()))
    assert half.iteration_s == pytest.approx(0.5 * calls_s + between(0.5) * one.stages["other"])
    assert half.between_s == pytest.approx(between(0.5) * one.between_s, abs=1e-9)
    for own, then in zip(one.spans, half.spans, strict=True):
        assert then.counts is not None
        ratio = then.duration_s / own.duration_s if own.duration_s else 0.5
        assert ratio == pytest.approx(0.5) if own.critical else 0.5 <= ratio <= between(0.5)
        assert [then.counts.host_s, then.counts.device_s] == pytest.approx([2.0 * ratio, 4.0 * ratio])
        assert then.counts.bytes_in == 7
        assert then.compute_s + then.comm_s == pytest.approx(ratio * (own.compute_s + own.comm_s))
    assert (half.memory, half.tokens, half.num_gpus) == (one.memory, one.tokens, one.num_gpus)


def test_between_calls_there_is_a_wait_that_no_core_shortens() -> None:
    """At a core's own pace nothing changes; of twice the pace less than half, and never less than the wait is left."""
    assert between(1.0) == 1.0
    assert 0.5 < between(0.5) < 1.0 < between(2.0) < 2.0
    assert between(1e9) == pytest.approx(1.0 / (1.0 - FOLLOWS))


def test_visits_at_different_paces_of_the_cores_repeat(measured: Callable[[float], Visit]) -> None:
    """Somebody has half of a core during the first: what takes as many steps as the second repeats it."""
    made = iter([Made(measured(1.7), (1.7,) * (NUM + 1)), Made(measured(1.02), FREE)])
    kept = visit_until_calm(_plans("a"), 2, lambda plan: next(made), 1.0)["a"]
    assert [median_s(visit) for visit in kept.visits] == pytest.approx([1.0, 1.02])
    assert kept.others == 0
    assert kept.pace_s == pytest.approx(1.35)
    assert kept.pace_apart == pytest.approx(0.7 / 1.35), "and that they changed it is told"


def test_the_pace_is_looked_at_around_each_iteration_after_warm_up(measured: Callable[[float], Visit]) -> None:
    looks = iter(range(100))
    watch = PaceWatch(lambda: float(next(looks)))
    timelines = measured(1.0) + measured(1.0)
    for iteration in range(len(timelines)):
        watch(iteration, {})
    made = watch.made(timelines)
    assert made.visit == timelines[WARMUP:]
    assert made.paces_s == tuple(float(i) for i in range(len(made.visit) + 1))


def _plans(*names: str) -> dict[str, Plan]:
    facts = make_facts("ppo", work=workload(64, 512, 256))
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8)
    return {name: plan.model_copy(update={"placement": name}) for name in names}
