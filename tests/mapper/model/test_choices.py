"""Protects what a choice is worth and whether an instance contains it, against an independent enumeration."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode
from mapper.model.choices import fits, gpus_of, senders, ticks_of, transfer_ticks, with_budget
from mapper.model.instance import Instance
from mapper.model.variables import Choice
from mapper.problem import ColocationGroup
from tests.builders import OTHER, TOY, on_toy, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import call_ticks, counted, end_ticks, every_choice, every_combination

MODES = [SYNC, ExecutionMode(dedicated_rollout=True), ExecutionMode("one-step-off", dedicated_rollout=True)]
small = st.builds(
    lambda mode, seed, gpus, other, capacity: toy_instance(
        "grpo",
        ("actor", "reference"),
        seed,
        num_gpus=gpus,
        second_kind=other,
        sizes=(1, 2),
        most_rows=2 if mode is SYNC and not other else 1,
        capacity_mib=capacity,
        mode=mode,
    ),
    st.sampled_from(MODES),
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(10, 30),
)


@settings(max_examples=draws(25))
@given(small, st.integers(1, 9))
def test_a_choice_fits_exactly_where_an_enumeration_allows_it(x: Instance, budget: int) -> None:
    x = replace(x, budget=budget, weight={TOY: 2, OTHER: 1})
    there = every_choice(x)
    assert [c for c in every_combination(x) if fits(x, c)] == there
    for choice in there:
        assert ticks_of(x, choice) == end_ticks(x, choice)


@settings(max_examples=draws(15))
@given(small, st.integers(0, 9))
def test_a_budget_leaves_exactly_the_choices_that_count_no_more(x: Instance, budget: int) -> None:
    x = replace(x, budget=8, weight={TOY: 2, OTHER: 1})
    there = every_choice(with_budget(x, budget))
    assert there == [c for c in every_choice(x) if counted(x, c) <= budget]


def test_a_budget_above_the_cluster_changes_nothing() -> None:
    x = toy_instance("grpo", ("actor", "reference"), 0)
    assert with_budget(x, 99).budget == x.budget
    assert with_budget(x, 99).sizes == x.sizes
    assert with_budget(x, 1).sizes == dict.fromkeys(x.sizes, (1,))


@pytest.fixture
def by_hand() -> Instance:
    """Actor and reference on 4 GPUs, one row each of 2 GPUs that keeps 4 MiB and runs in 2 more."""
    x = toy_instance("grpo", ("actor", "reference"), 0, sizes=(2, 4), most_rows=1, capacity_mib=12)
    kept, passing = np.asarray([4]), np.asarray([2])
    seconds = {
        "actor": {"transition": 1, "generate_sequences": 10, "update_actor": 8},
        "reference": {"compute_ref_log_prob": 5},
        "controller": {"compute_reward": 3, "compute_advantage": 2},
    }
    return replace(
        x,
        tables={role: table.take(np.asarray([0])) for role, table in x.tables.items()},
        ticks={role: {key: np.asarray([n]) for key, n in calls.items()} for role, calls in seconds.items()},
        resident_mib={"actor": kept, "reference": kept},
        transient_mib={"actor": passing, "reference": passing},
    )


APART, TOGETHER = on_toy(("actor",), ("reference",)), on_toy(("actor", "reference"))
FIRST = {"actor": 0, "reference": 0}


def test_by_hand(by_hand: Instance) -> None:
    """1 + 10 + 5 + 2 + 8 in turn; the reward, on the CPU, ends before the reference does."""
    choice = Choice(((TOGETHER[0], 2),), FIRST)
    assert fits(by_hand, choice)
    assert ticks_of(by_hand, choice) == 26
    assert gpus_of(Choice(tuple(zip(APART, (2, 4), strict=True)), FIRST)) == 6


@pytest.mark.parametrize(
    ("changes", "pools", "holds"),
    [
        ({}, ((TOGETHER[0], 2),), True),
        ({"capacity_mib": {TOY: 10}}, ((TOGETHER[0], 2),), True),  # 4 + 4, and 2 for one of them at a time
        ({"capacity_mib": {TOY: 9}}, ((TOGETHER[0], 2),), False),
        ({"capacity_mib": {TOY: 9}}, ((APART[0], 2), (APART[1], 2)), True),
        ({}, ((APART[0], 2), (APART[1], 4)), False),  # 6 GPUs of 4
        ({"gpus": {TOY: 6}, "budget": 6}, ((APART[0], 2), (APART[1], 4)), True),
        ({"gpus": {TOY: 6}, "budget": 5}, ((APART[0], 2), (APART[1], 4)), False),
        ({"gpus": {TOY: 6}, "budget": 6, "equal_sizes": True}, ((APART[0], 2), (APART[1], 4)), False),
        ({"gpus": {TOY: 6}, "budget": 6, "equal_sizes": True}, ((APART[0], 2), (APART[1], 2)), True),
        ({}, ((TOGETHER[0], 1),), False),  # not a size, and too few for the row
        ({}, ((APART[0], 2),), False),  # no placement: the reference is nowhere
        ({}, ((ColocationGroup(("actor",), OTHER), 2), (APART[1], 2)), False),  # a kind that is not there
    ],
)
def test_each_limit_alone(by_hand: Instance, changes, pools, holds) -> None:  # type: ignore[no-untyped-def]
    x = replace(by_hand, **changes)
    x = replace(x, tables={role: replace(t, num_gpus=np.asarray([2])) for role, t in x.tables.items()})
    assert fits(x, Choice(pools, FIRST)) is holds


def test_pools_in_any_order_are_the_same_placement(by_hand: Instance) -> None:
    assert fits(by_hand, Choice(((APART[1], 2), (APART[0], 2)), FIRST))


def test_a_transfer_is_priced_for_the_senders_of_the_trainers_row() -> None:
    """Three ticks a sender in the made-up price, seven more from the other kind to its own."""
    x = toy_instance("grpo", ("actor",), 3, second_kind=4, mode=ExecutionMode(dedicated_rollout=True))
    assert senders(x).tolist() == x.tables["actor"].num_gpus.tolist()
    own = x.ticks[GENERATOR]["transition"]
    for choice in every_choice(x)[:50]:
        engine, trainer = choice.rows[GENERATOR], choice.rows["actor"]
        from_other = next(group.device_type for group, _ in choice.pools if "actor" in group.roles) == OTHER
        expected = own[engine] + 3 * x.tables["actor"].num_gpus[trainer]
        expected += 7 * from_other * x.tables[GENERATOR].device_type[engine]
        assert transfer_ticks(x, choice) == expected == call_ticks(x, choice, "transition")
