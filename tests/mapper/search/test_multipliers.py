"""Protects pruning by prices: every choice within the limit survives whatever they are, and none is below the bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.search.multipliers import prune_by_prices
from mapper.search.prune import prune_beyond
from tests.builders import toy_instance
from tests.draws import draws
from tests.mapper.enumeration import end_ticks, every_choice, least_ticks
from tests.mapper.exhaustive import exhaustive

if TYPE_CHECKING:
    from mapper.model.instance import Instance

ACTOR, REFERENCE, REWARD = "actor", "reference", "reward"
JOBS = [("grpo", (ACTOR, REFERENCE)), ("rloo", (ACTOR, REWARD)), ("remax", (ACTOR, REFERENCE, REWARD))]


def made(job: tuple[str, tuple[str, ...]], seed: int, gpus: int, other: int, capacity: int, equal: bool) -> Instance:
    """A small instance, of one kind of GPU or two, which may count differently in a budget below what there is."""
    second = 0 if len(job[1]) > 2 else other
    x = toy_instance(
        *job,
        seed,
        num_gpus=gpus,
        second_kind=second,
        sizes=(1, 2, 4),
        most_rows=3 if len(job[1]) < 3 else 2,
        capacity_mib=capacity,
        equal_sizes=equal and not second,
    )
    return replace(x, weight={"toy": 2, "other": 3}, budget=9) if second == 2 else x


instances = st.builds(
    made,
    st.sampled_from(JOBS),
    st.integers(0, 10_000),
    st.integers(2, 6),
    st.integers(0, 2),
    st.integers(10, 40),
    st.booleans(),
)


@settings(max_examples=draws(30))
@given(instances, st.integers(0, 30))
def test_nothing_that_is_dropped_is_part_of_any_choice_within_the_limit(x: Instance, credit: int) -> None:
    least = least_ticks(x)
    if least is None:
        return
    pruned, kept, bound = prune_by_prices(x, least + credit)
    assert bound <= least
    for choice in every_choice(x):
        if end_ticks(x, choice) <= least + credit:
            assert {group for group, _ in choice.pools} in [set(p) for p in pruned.partitions]
            assert all(n in pruned.sizes[group] for group, n in choice.pools)
            assert all(row in kept[role] for role, row in choice.rows.items())


@settings(max_examples=draws(30))
@given(instances, st.integers(1, 10))
def test_below_the_best_nothing_appears_and_the_bound_says_so(x: Instance, less: int) -> None:
    least = least_ticks(x)
    if least is None:
        return
    pruned, _, bound = prune_by_prices(x, least - less)
    assert exhaustive(pruned, limit_ticks=least - less) == (None, 0)
    assert bound <= least


def test_memory_that_is_short_has_a_price() -> None:
    """Two roles on a GPU that are faster the more memory they have: the best is to have half each.

    A row with nearly all of it fits beside the other's least hungry row, and would be best if that were a fast one.
    """
    x = toy_instance(*JOBS[0], 7, num_gpus=1, sizes=(1,), most_rows=60, capacity_mib=40)
    x = replace(x, partitions=tuple(p for p in x.partitions if len(p) == 1))
    resident = {role: np.arange(len(m)) for role, m in x.resident_mib.items()}
    slow = {role: 1000 // (1 + mib) for role, mib in resident.items()}
    ticks = {role: {key: slow.get(role, t) for key, t in own.items()} for role, own in x.ticks.items()}
    none = {role: np.zeros_like(mib) for role, mib in resident.items()}
    x = replace(x, ticks=ticks, resident_mib=resident, transient_mib=none)
    least = exhaustive(x)[1]
    before, _ = prune_beyond(x, least)
    after, _, bound = prune_by_prices(before, least)
    assert after.num_candidates < before.num_candidates
    assert before.floor_ticks < 0.95 * least < bound <= least
