"""Protects what lies between calls: how many follow one another, and an iteration of fakes that takes that alone."""

import pytest

from executor.profiling.dispatch import SETS, calls_on_path, dispatch_key, dispatch_keys, gaps, measure_dispatch
from executor.profiling.plans import ppo_plan
from profiles.tables.write import AROUND, BETWEEN
from simulator.plan.timeline import Timeline


@pytest.mark.parametrize(("pools", "calls"), [(1, 8), (4, 5)])
def test_calls_of_other_pools_do_not_wait_for_each_other(pools: int, calls: int) -> None:
    """All on one: transition, generation, three scores, advantages, two updates. Apart, scores are one, and updates."""
    assert calls_on_path(ppo_plan(SETS[pools], 8)) == calls


@pytest.mark.parametrize("shared", [True, False])
def test_only_ranks_that_compute_elsewhere_are_stood_for_by_fakes(shared: bool) -> None:
    keys = [
        (key["launcher"], key["ranks"], key["pools"])
        for key in dispatch_keys(("local", "ray"), (128,), cores_are_shared=shared)
    ]
    assert keys == [("local", 1, 1), ("ray", 1, 1), *([] if shared else [("ray", 4, 4), ("ray", 2, 1)])]


def iteration(*spans: tuple[float, float], beside: int) -> Timeline:
    """All on the critical path but the one ``beside`` it."""
    about = {"api": "x", "role": "actor", "pool": "A", "stage": "other", "compute_s": 0.0, "comm_s": 0.0, "basis": {}}
    made = [
        {"call": str(i), "start_s": s, "end_s": e, "critical": i != beside, **about} for i, (s, e) in enumerate(spans)
    ]
    whole = {"iteration_s": 20.0, "stages": {}, "memory": {}, "basis": {}, "tokens": 1.0, "num_gpus": 1}
    return Timeline.model_validate({"source": "measured", "spans": made, **whole})


def test_an_iteration_is_its_calls_what_lies_between_and_what_lies_around() -> None:
    """A call of another pool that runs on while the path waits for the controller hides nothing of the wait."""
    spans = ((2.0, 5.0), (6.0, 12.0), (7.0, 12.5), (13.0, 17.0))
    found = gaps([iteration(*spans, beside=2)], ppo_plan(SETS[1], 8))
    assert found[AROUND].median_s == pytest.approx(5.0)
    assert found[BETWEEN].median_s == pytest.approx(2.0 / 7)


def test_an_empty_iteration_takes_time_between_its_calls_and_around_them() -> None:
    found, peak = measure_dispatch(dispatch_key("local", 16, 1, 1), 3)
    assert all(part.repeats == 3 and part.median_s > 0 for part in found.values())
    assert set(found) == {BETWEEN, AROUND}
    assert peak > 1e6
