"""Protects what lies between calls: how many follow one another, and an iteration of fakes that takes that alone."""

import pytest

from executor.profiling.dispatch import SETS, calls_on_path, dispatch_keys, measure_dispatch
from executor.profiling.plans import ppo_plan


@pytest.mark.parametrize(("ranks", "calls"), [(1, 8), (4, 5)])
def test_calls_of_other_pools_do_not_wait_for_each_other(ranks: int, calls: int) -> None:
    """All on one: transition, generation, three scores, advantages, two updates. Apart, scores are one, and updates."""
    assert calls_on_path(ppo_plan(SETS[ranks], 8)) == calls


def test_only_ranks_behind_a_controller_have_company() -> None:
    keys = [tuple(key.values()) for key in dispatch_keys(("local", "ray"), (128,))]
    assert keys == [("local", 128, 1), ("ray", 128, 1), ("ray", 128, 4)]


def test_an_empty_iteration_takes_time_between_its_calls() -> None:
    found, peak = measure_dispatch("local", 16, 1, 3)
    assert found.repeats == 3
    assert found.median_s > 0
    assert peak > 1e6
