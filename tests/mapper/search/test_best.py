"""Protects the one entrance to the searches: whatever prices an instance's transfers and company, its best choice."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.execution_mode import SYNC, ExecutionMode
from mapper.model.instance import Instance
from mapper.model.variables import Choice
from mapper.search.best import best_alone, best_choice
from mapper.search.neighbours import Neighbours
from tests.builders import toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, end_ticks, every_choice, least_ticks
from tests.work import HANGS_S

MODES = [SYNC, ExecutionMode(dedicated_rollout=True), ExecutionMode("one-step-off", dedicated_rollout=True)]


class Crowd(Neighbours):
    """A host on which every pool beyond the first costs 20 ticks."""

    def __init__(self) -> None:
        super().__init__(None, 1.0, 0)  # type: ignore[arg-type]  # no problem to price

    def ticks(self, instance: Instance, choice: Choice) -> int:
        return end_ticks(instance, choice) + 20 * (len(choice.pools) - 1)


def instance(mode: ExecutionMode, seed: int, gpus: int, capacity: int) -> Instance:
    roles = ("actor", "reference")
    rows = 2 if mode is SYNC else 1
    return toy_instance(
        "grpo", roles, seed, num_gpus=gpus, sizes=(1, 2), most_rows=rows, capacity_mib=capacity, mode=mode
    )


drawn = st.builds(instance, st.sampled_from(MODES), st.integers(0, 10_000), st.integers(1, 4), st.integers(10, 40))


@settings(max_examples=draws(40))
@given(drawn, st.integers(0, 3))
def test_every_kind_of_instance_gets_its_best_choice(x: Instance, seed: int) -> None:
    least = least_ticks(x)
    for search in (best_choice, lambda x, *rest: best_alone(x, *rest, None, None, 1)):
        choice, solution = search(x, seed, HANGS_S)
        if least is None:
            assert (choice, solution.status) == (None, "infeasible")
            continue
        assert choice is not None
        assert allowed(x, choice)
        assert end_ticks(x, choice) == solution.objective_ticks == solution.bound_ticks == least
        assert solution.status == "optimal"


@settings(max_examples=draws(10))
@given(drawn)
def test_company_is_counted_where_ranks_share_a_host(x: Instance) -> None:
    """Ranges are not split for less than a tick a call, so by that much a better one may be left."""
    crowded, host = replace(x, neighbours=Crowd()), Crowd()
    there = every_choice(x)
    if not there:
        return
    choice, solution = best_choice(crowded, 0, HANGS_S)
    least = min(host.ticks(x, c) for c in there)
    assert choice is not None
    assert host.ticks(x, choice) == solution.objective_ticks
    assert solution.bound_ticks <= least <= solution.objective_ticks <= least + len(x.flow.calls)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_cutoff_and_a_known_choice_reach_the_search(mode: ExecutionMode) -> None:
    x = instance(mode, 7, 4, 40)
    there = sorted(every_choice(x), key=lambda choice: end_ticks(x, choice))
    least = end_ticks(x, there[0])
    none, refused = best_choice(x, 0, HANGS_S, cutoff=least - 1)
    assert (none, refused.bound_ticks) == (None, least)
    found, solution = best_choice(x, 0, HANGS_S, cutoff=least)
    assert found is not None
    assert end_ticks(x, found) == solution.objective_ticks == least
    kept, _ = best_choice(x, 0, 0.0, known=there[0])  # no time to find anything
    assert kept is not None
    assert end_ticks(x, kept) == least
