"""Protects the searches over GPU budgets: for each budget, and each objective over them, the answer of brute force."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.deadline import NEVER
from mapper.execution_mode import SYNC, ExecutionMode
from mapper.model.instance import Instance
from mapper.search.budgets import Found, Search, budgets_of, fewest_gpus_within, is_never, least_gpu_time
from tests.builders import OTHER, TOY, on_toy, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, counted, end_ticks, every_choice, least_ticks

OWN = ExecutionMode("one-step-off", dedicated_rollout=True)


def searching(x: Instance) -> Search:
    return Search(x, 0, NEVER)


def drawn(mode: ExecutionMode, seed: int, gpus: int, other: int, weights: tuple[int, int], capacity: int) -> Instance:
    roles = ("actor",) if mode is OWN and other else ("actor", "reference")
    rows = 1 if other or mode is OWN else 2
    x = toy_instance(
        "grpo",
        roles,
        seed,
        num_gpus=gpus,
        second_kind=other,
        sizes=(1, 2),
        most_rows=rows,
        capacity_mib=capacity,
        mode=mode,
    )
    weight = dict(zip(x.device_types, weights, strict=False))
    return replace(x, weight=weight, budget=sum(weight[device_type] * n for device_type, n in x.gpus.items()))


instances = st.builds(
    drawn,
    st.sampled_from([SYNC, OWN]),
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(0, 2),
    st.sampled_from([(1, 1), (3, 2), (2, 5)]),
    st.integers(10, 40),
)


@settings(max_examples=draws(12))
@given(instances)
def test_each_budget_has_the_answer_of_an_enumeration(x: Instance) -> None:
    there = [(counted(x, c), end_ticks(x, c)) for c in every_choice(x)]
    for budget in range(1, x.budget + 1):
        least = min((ticks for spent, ticks in there if spent <= budget), default=None)
        choice, bound = searching(x).at(budget, None)
        if least is None:
            assert choice is None
            assert is_never(bound)
            continue
        assert choice is not None
        assert (end_ticks(x, choice), bound) == (least, least)
        assert counted(x, choice) <= budget


def check(x: Instance, found: Found) -> None:
    """What is said of an answer, against every choice that there is."""
    there = [(counted(x, c), end_ticks(x, c)) for c in every_choice(x)]
    assert allowed(x, found.choice)
    assert found.ticks == end_ticks(x, found.choice)
    spent = counted(x, found.choice)
    assert found.bound_ticks == found.ticks == min(ticks for n, ticks in there if n <= spent)
    assert found.floor_ticks <= min(ticks for _, ticks in there)


@settings(max_examples=draws(25))
@given(instances)
def test_the_least_gpu_time_weighs_every_kind(x: Instance) -> None:
    worth = [counted(x, c) * end_ticks(x, c) for c in every_choice(x)]
    found = least_gpu_time(searching(x), None)
    if not worth:
        assert found is None
        return
    assert found is not None
    assert found.ticks * counted(x, found.choice) == found.least == min(worth)
    check(x, found)


@settings(max_examples=draws(25))
@given(instances, st.floats(0.9, 2.5))
def test_the_fewest_gpus_within_a_target_weigh_every_kind(x: Instance, factor: float) -> None:
    least = least_ticks(x)
    target = 50 if least is None else int(least * factor)
    enough = [counted(x, c) for c in every_choice(x) if end_ticks(x, c) <= target]
    found = fewest_gpus_within(searching(x), target, None)
    if not enough:
        assert found is None
        return
    assert found is not None
    assert counted(x, found.choice) == found.least == min(enough)
    assert found.ticks <= target
    check(x, found)


@pytest.mark.parametrize("goal", ["least", "fewest"])
def test_a_known_choice_changes_no_answer(goal: str) -> None:
    x = drawn(SYNC, 5, 4, 0, (1, 1), 40)
    for known in every_choice(x)[::7]:
        found = least_gpu_time(searching(x), known) if goal == "least" else fewest_gpus_within(searching(x), 45, known)
        expected = [
            (counted(x, c) * end_ticks(x, c) if goal == "least" else counted(x, c))
            for c in every_choice(x)
            if goal == "least" or end_ticks(x, c) <= 45
        ]
        assert found is not None
        assert found.least == min(expected)
        check(x, found)


@settings(max_examples=draws(40))
@given(instances)
def test_budgets_are_what_the_pools_of_some_placement_count_together(x: Instance) -> None:
    sums = set()
    for placement in x.partitions:
        for sizes in product(*(x.sizes[group] for group in placement)):
            used = {
                device_type: sum(n for g, n in zip(placement, sizes, strict=True) if g.device_type == device_type)
                for device_type in x.device_types
            }
            if all(n <= x.gpus[device_type] for device_type, n in used.items()):
                sums.add(sum(x.weight[device_type] * n for device_type, n in used.items()))
    assert budgets_of(x) == sorted(n for n in sums if n <= x.budget)


def test_budgets_by_hand() -> None:
    """One pool of 2 or 4, or two of them; on 6 GPUs two of 4 do not fit. With five for a GPU, the same five times."""
    x = toy_instance("grpo", ("actor", "reference"), 0, num_gpus=6, sizes=(2, 4))
    assert budgets_of(x) == [2, 4, 6]
    assert budgets_of(replace(x, weight={TOY: 5}, budget=25)) == [10, 20]
    only = on_toy(("actor",), ("reference",))
    assert budgets_of(replace(x, partitions=(only,), sizes=dict.fromkeys(only, (2, 4)))) == [4, 6]
    free = toy_instance("grpo", ("actor",), 0, num_gpus=2, second_kind=2, sizes=(1, 2))
    assert budgets_of(replace(free, weight={TOY: 3, OTHER: 0}, budget=6)) == [3, 6]
