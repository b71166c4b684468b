"""Protects pruning against a known choice: the optimum, and every choice within the limit, survives it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.model.instance import make_instance
from mapper.problem import make_problem
from mapper.search.incumbent import greedy
from mapper.search.prune import prune_beyond
from tests.builders import make_facts, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import end_ticks, every_choice
from tests.mapper.exhaustive import exhaustive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Placement

JOBS = [
    ("ppo", ("actor", "critic", "reference", "reward")),
    ("remax", ("actor", "reference", "reward")),
    ("grpo", ("actor", "reference")),
]
instances = st.builds(
    lambda job, seed, gpus, capacity, equal: toy_instance(
        *job, seed, num_gpus=gpus, capacity_mib=capacity, equal_sizes=equal
    ),
    st.sampled_from(JOBS),
    st.integers(0, 2**31),
    st.integers(2, 7),
    st.integers(12, 40),
    st.booleans(),
)


@settings(max_examples=draws(120))
@given(instances, st.integers(0, 20))
def test_the_optimum_survives(instance: Instance, credit: int) -> None:
    choice, ticks = exhaustive(instance)
    if choice is None:
        return
    pruned, kept = prune_beyond(instance, ticks + credit)
    assert exhaustive(pruned)[1] == ticks
    for role, rows in kept.items():
        assert len(pruned.tables[role]) == len(rows) <= len(instance.tables[role])
        assert choice.rows[role] in rows
        for key, values in pruned.ticks[role].items():
            assert np.array_equal(values, instance.ticks[role][key][rows])
        assert np.array_equal(pruned.resident_mib[role], instance.resident_mib[role][rows])
    for group, n in choice.pools:
        assert n in pruned.sizes[group]


@settings(max_examples=draws(100))
@given(instances)
def test_pruned_against_any_feasible_choice_the_optimum_is_the_same(instance: Instance) -> None:
    """Here the quick one, as the search does; it survives its own pruning, row by row."""
    choice, limit = greedy(instance)
    if choice is None:
        return
    pruned, kept = prune_beyond(instance, limit)
    assert exhaustive(pruned)[1] == exhaustive(instance)[1] <= limit
    assert all(choice.rows[role] in rows for role, rows in kept.items())
    assert all(n in pruned.sizes[group] for group, n in choice.pools)
    assert tuple(group for group, _ in choice.pools) in pruned.partitions


def choices_within(instance: Instance, partition: Placement, limit: int) -> Iterator[Choice]:
    """Every choice of a placement of at most ``limit`` ticks, listed without any shortcut."""
    for choice in every_choice(replace(instance, partitions=(partition,))):
        if end_ticks(instance, choice) <= limit:
            yield choice


@settings(max_examples=draws(60))
@given(
    st.sampled_from(JOBS[1:]),
    st.integers(0, 10_000),
    st.integers(3, 6),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 30),
)
def test_nothing_that_is_dropped_is_part_of_any_choice_within_the_limit(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, other: int, equal: bool, credit: int
) -> None:
    """Placements, pool sizes and rows, against brute force; on one kind of GPU and on two with prices."""
    job = JOBS[2] if other else job
    x = toy_instance(
        *job,
        seed,
        num_gpus=gpus,
        sizes=(1, 2, 4),
        most_rows=2,
        capacity_mib=25,
        equal_sizes=equal and not other,
        second_kind=other,
    )
    x = replace(x, weight={"toy": 2, "other": 3}, budget=9) if other == 2 else x
    choice, ticks = exhaustive(x)
    if choice is None:
        return
    pruned, kept = prune_beyond(x, ticks + credit)
    for partition in x.partitions:
        for found in choices_within(x, partition, ticks + credit):
            assert partition in pruned.partitions
            assert all(n in pruned.sizes[group] for group, n in found.pools)
            assert all(row in kept[role] for role, row in found.rows.items())


def test_a_placement_that_cannot_beat_the_known_choice_is_dropped() -> None:
    """Pruning that only ever kept everything would pass for safe."""
    dropped = 0
    for seed in range(30):
        x = toy_instance(*JOBS[0], seed, num_gpus=5, capacity_mib=40)
        pruned, _ = prune_beyond(x, exhaustive(x)[1])
        dropped += len(x.partitions) - len(pruned.partitions)
    assert dropped > 30 * len(x.partitions) / 2


@settings(max_examples=draws(25))
@given(st.sampled_from(JOBS), st.integers(0, 10_000))
def test_every_placements_own_optimum_within_the_limit_survives(job: tuple[str, tuple[str, ...]], seed: int) -> None:
    x = toy_instance(*job, seed, num_gpus=5, capacity_mib=30)
    limit = exhaustive(x)[1] + 10
    pruned, _ = prune_beyond(x, limit)
    for partition in x.partitions:
        choice, ticks = exhaustive(replace(x, partitions=(partition,)))
        if choice is not None and ticks <= limit:
            assert partition in pruned.partitions
            assert exhaustive(replace(pruned, partitions=(partition,)))[1] == ticks


def test_below_the_optimum_nothing_better_appears() -> None:
    x = toy_instance("ppo", JOBS[0][1], 3, num_gpus=6, capacity_mib=40)
    ticks = exhaustive(x)[1]
    assert exhaustive(prune_beyond(x, ticks - 1)[0], limit_ticks=ticks - 1) == (None, 0)


@pytest.mark.parametrize("nodes", [2, 4])
def test_it_leaves_little_of_a_real_instance(nodes: int) -> None:
    x = make_instance(make_problem(make_facts("ppo", nodes=nodes)))
    _, limit = greedy(x)
    pruned, kept = prune_beyond(x, limit)
    assert pruned.num_candidates < x.num_candidates / 2
    assert all(len(rows) for rows in kept.values())
