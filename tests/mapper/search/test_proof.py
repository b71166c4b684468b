"""Protects the search of one instance and its proof: an enumeration's optimum, from any start, within any cutoff."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.model.instance import Instance
from mapper.search.incumbent import greedy
from mapper.search.proof import best_as_priced
from tests.builders import OTHER, TOY, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, end_ticks, every_choice, least_ticks
from tests.work import HANGS_S

ACTOR, REFERENCE, REWARD = "actor", "reference", "reward"
JOBS = [("grpo", (ACTOR, REFERENCE)), ("rloo", (ACTOR, REWARD)), ("remax", (ACTOR, REFERENCE, REWARD))]
instances = st.builds(
    lambda job, seed, gpus, other, capacity, equal: toy_instance(
        *job,
        seed,
        num_gpus=gpus,
        second_kind=0 if len(job[1]) > 2 else other,
        sizes=(1, 2),
        most_rows=2,
        capacity_mib=capacity,
        equal_sizes=equal and not other,
    ),
    st.sampled_from(JOBS),
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(10, 40),
    st.booleans(),
)


@settings(max_examples=draws(50))
@given(instances)
def test_the_best_choice_is_that_of_an_enumeration(x: Instance) -> None:
    least = least_ticks(x)
    choice, solution = best_as_priced(x, 0, HANGS_S)
    if least is None:
        assert (choice, solution.status) == (None, "infeasible")
        return
    assert choice is not None
    assert allowed(x, choice)
    assert end_ticks(x, choice) == solution.objective_ticks == solution.bound_ticks == least
    assert solution.status == "optimal"


@settings(max_examples=draws(30))
@given(instances, st.integers(-3, 8))
def test_within_a_cutoff_the_same_choice_or_a_proof_that_there_is_none(x: Instance, more: int) -> None:
    least = least_ticks(x)
    cutoff = (20 if least is None else least) + more
    choice, solution = best_as_priced(x, 0, HANGS_S, cutoff=cutoff)
    if least is None or least > cutoff:
        assert choice is None
        assert solution.bound_ticks == cutoff + 1
        return
    assert choice is not None
    assert end_ticks(x, choice) == solution.objective_ticks == least
    assert solution.bound_ticks == min(least, cutoff + 1)


@settings(max_examples=draws(30))
@given(instances, st.integers(0, 10_000))
def test_where_the_search_starts_does_not_matter(x: Instance, at: int) -> None:
    """From any choice that fits, the best one included."""
    there = every_choice(x)
    if not there:
        return
    known = there[at % len(there)]
    choice, solution = best_as_priced(x, 0, HANGS_S, known)
    assert choice is not None
    assert end_ticks(x, choice) == solution.objective_ticks == solution.bound_ticks == least_ticks(x)


def beaten() -> Instance:
    """An instance whose quick choice is not the best."""
    seeds = (toy_instance(*JOBS[2], seed, num_gpus=5, sizes=(1, 2), most_rows=3, capacity_mib=20) for seed in range(99))
    return next(x for x in seeds if (least := least_ticks(x)) is not None and greedy(x)[1] > least)


def test_a_known_choice_that_is_better_than_the_quick_one_is_what_is_left_when_time_is_up() -> None:
    x = beaten()
    best, _ = best_as_priced(x, 0, HANGS_S)
    assert best is not None
    late, solution = best_as_priced(x, 0, 0.0, best)
    assert late is not None
    assert end_ticks(x, late) == solution.objective_ticks == least_ticks(x)
    assert 0 < x.floor_ticks <= solution.bound_ticks <= solution.objective_ticks


@settings(max_examples=draws(40))
@given(instances)
def test_no_choice_is_below_what_every_shortest_call_takes(x: Instance) -> None:
    """The bound where time was up before the search began."""
    least = least_ticks(x)
    assert least is None or x.floor_ticks <= least


def test_a_known_choice_that_does_not_fit_is_no_start() -> None:
    x = beaten()
    worst = max(every_choice(x), key=lambda choice: end_ticks(x, choice))
    poor = replace(x, gpus={TOY: 1}, budget=1)
    assert not allowed(poor, worst)
    choice, solution = best_as_priced(poor, 0, HANGS_S, worst)
    assert (solution.objective_ticks if choice else None) == least_ticks(poor)


@pytest.mark.parametrize("seed", range(3))
def test_kinds_that_count_differently_share_one_budget(seed: int) -> None:
    x = toy_instance(*JOBS[0], seed, num_gpus=3, second_kind=3, sizes=(1, 2), most_rows=2, capacity_mib=40)
    for budget in range(1, 10):
        priced = replace(x, weight={TOY: 3, OTHER: 2}, budget=budget)
        choice, solution = best_as_priced(priced, 0, HANGS_S)
        assert (solution.objective_ticks if choice else None) == least_ticks(x=priced)
