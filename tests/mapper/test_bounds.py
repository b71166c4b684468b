"""Protects pruning against a known choice: the optimum, and every choice within the limit, survives it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.algorithm1 import exhaustive
from mapper.bounds import prune_beyond
from mapper.greedy import greedy
from mapper.instance import make_instance
from mapper.problem import make_problem
from tests.builders import make_facts, toy_instance

JOBS = [("ppo", ("actor", "critic", "reference", "reward")), ("remax", ("actor", "reference", "reward"))]


@settings(max_examples=60)
@given(st.sampled_from(JOBS), st.integers(0, 10_000), st.integers(2, 7), st.integers(12, 40), st.integers(0, 20))
def test_the_optimum_survives(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, capacity: int, slack: int
) -> None:
    x = toy_instance(*job, seed, num_gpus=gpus, capacity_mib=capacity)
    choice, ticks = exhaustive(x)
    if choice is None:
        return
    pruned, kept = prune_beyond(x, ticks + slack)
    assert exhaustive(pruned)[1] == ticks
    for role, rows in kept.items():
        assert len(pruned.tables[role]) == len(rows) <= len(x.tables[role])
        assert choice.rows[role] in rows
        for key, values in pruned.ticks[role].items():
            assert np.array_equal(values, x.ticks[role][key][rows])
        assert np.array_equal(pruned.resident_mib[role], x.resident_mib[role][rows])
    for roles, n in choice.pools:
        assert n in pruned.sizes[roles]


@settings(max_examples=25)
@given(st.sampled_from(JOBS), st.integers(0, 10_000))
def test_every_placements_own_optimum_within_the_limit_survives(job: tuple[str, tuple[str, ...]], seed: int) -> None:
    x = toy_instance(*job, seed, num_gpus=5, capacity_mib=30)
    limit = exhaustive(x)[1] + 10
    pruned, _ = prune_beyond(x, limit)
    for partition in x.partitions:
        choice, ticks = exhaustive(replace(x, partitions=(partition,)))
        if choice is not None and ticks <= limit:
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
