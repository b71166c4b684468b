"""Protects the search where pools slow each other down: the best plan as it is played, and a bound that none beats."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.model.instance import Instance
from mapper.model.variables import Choice
from mapper.search.best import best_alone
from mapper.search.host_contention import best_beside_neighbours
from mapper.search.neighbours import Neighbours
from tests.builders import on_toy, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, end_ticks, every_choice
from tests.work import HANGS_S

ROLES = ("actor", "reference", "reward")


class Host(Neighbours):
    """What company costs: some ticks a further rank before every call, and some for each further pool."""

    def __init__(self, further_rank_ticks: int, further_pool_ticks: int) -> None:
        super().__init__(None, 1.0, further_rank_ticks)  # type: ignore[arg-type]  # no problem to price
        self.further_pool_ticks = further_pool_ticks

    def ticks(self, instance: Instance, choice: Choice) -> int:
        before = self.further_rank_ticks * (sum(n for _, n in choice.pools) - 1)
        later = {role: {key: t + before for key, t in calls.items()} for role, calls in instance.ticks.items()}
        beside = self.further_pool_ticks * (len(choice.pools) - 1)
        return end_ticks(replace(instance, ticks=later), choice) + beside


def shared(seed: int, gpus: int, rank: int, pool: int, capacity: int = 40) -> Instance:
    x = toy_instance("remax", ROLES, seed, num_gpus=gpus, sizes=(1, 2), most_rows=1, capacity_mib=capacity)
    return replace(x, neighbours=Host(rank, pool))


def searched(x: Instance, known: Choice | None = None, cutoff: int | None = None):  # type: ignore[no-untyped-def]
    return best_beside_neighbours(x, 0, HANGS_S, known, cutoff, 1, best_alone)


def as_played(x: Instance) -> dict[int, Choice]:
    """Every choice by its ticks in company."""
    assert x.neighbours is not None
    return {x.neighbours.ticks(x, choice): choice for choice in every_choice(x)}


@settings(max_examples=draws(12))
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([0, 7, 40]),
    st.integers(10, 40),
)
def test_the_plan_is_the_best_as_played_and_none_is_below_the_bound(
    seed: int, gpus: int, rank: int, pool: int, capacity: int
) -> None:
    """Ranges are not split for less than a tick a call, so by that much a better one may be left."""
    x = shared(seed, gpus, rank, pool, capacity)
    least = min(as_played(x), default=None)
    choice, solution = searched(x)
    if least is None:
        assert (choice, solution.status) == (None, "infeasible")
        return
    assert choice is not None
    assert allowed(x, choice)
    assert x.neighbours is not None
    assert x.neighbours.ticks(x, choice) == solution.objective_ticks
    assert solution.bound_ticks <= least <= solution.objective_ticks <= least + len(x.flow.calls)
    assert solution.status == ("optimal" if solution.bound_ticks == solution.objective_ticks else "feasible")


@pytest.mark.parametrize(("pool", "pools"), [(0, 2), (100, 1)])
def test_pools_that_cost_more_than_they_save_become_one(pool: int, pools: int) -> None:
    """Reference and reward score side by side on two pools; a hundred ticks are more than that saves."""
    choice, _ = searched(shared(3, 3, 0, pool))
    assert choice is not None
    assert len(choice.pools) == pools


@settings(max_examples=draws(6))
@given(st.integers(0, 10_000), st.integers(-10, 10), st.integers(0, 10_000))
def test_a_cutoff_is_kept_or_proven_out_of_reach_whatever_is_known(seed: int, more: int, at: int) -> None:
    x = shared(seed, 3, 2, 9)
    played = as_played(x)
    if not played:
        return
    cutoff, known_ticks = min(played) + more, list(played)[at % len(played)]
    choice, solution = searched(x, played[known_ticks], cutoff)
    if choice is None:
        assert known_ticks > cutoff
        assert min(played) + len(x.flow.calls) > cutoff
        return
    assert x.neighbours is not None
    assert x.neighbours.ticks(x, choice) == solution.objective_ticks <= max(cutoff, known_ticks)


def test_a_known_choice_above_the_cutoff_is_not_called_the_best() -> None:
    x = shared(0, 3, 0, 0)
    played = as_played(x)
    least, next_best = sorted(played)[:2]
    _, solution = searched(x, played[next_best], least - 1)
    assert solution.bound_ticks <= least


def test_one_rank_has_no_company() -> None:
    x = shared(1, 1, 50, 50)
    choice, solution = searched(x)
    assert choice is not None
    assert choice.pools == ((on_toy(ROLES)[0], 1),)
    assert solution.status == "optimal"
    assert solution.objective_ticks == end_ticks(x, choice)
