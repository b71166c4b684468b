"""Protects the quick start: what it offers is feasible, costs what it says, and is never better than the optimum."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.model.instance import Instance, make_instance
from mapper.model.makespan import makespan
from mapper.model.variables import Choice
from mapper.problem import make_problem
from mapper.search import incumbent
from mapper.search.incumbent import _allocations, _picked, _worth_picking, greedy, polished
from simulator.plan.dataflow import CONTROLLER
from tests.builders import TOY, make_facts, on_gpus, tiny_facts, toy_instance
from tests.draws import draws
from tests.mapper.exhaustive import exhaustive

PPO = ("actor", "critic", "reference", "reward")


def check(instance: Instance, choice: Choice, ticks: int) -> None:
    partition = tuple(group for group, _ in choice.pools)
    assert partition in instance.partitions
    for device_type, most in instance.gpus.items():
        assert sum(n for group, n in choice.pools if group.device_type == device_type) <= most
    assert instance.spent(choice.pools) <= instance.budget
    assert not instance.equal_sizes or len({n for _, n in choice.pools}) == 1
    for group, n in choice.pools:
        rows = {role: choice.rows[role] for role in group.roles}
        assert all(
            instance.device_types[instance.tables[role].device_type[row]] == group.device_type
            for role, row in rows.items()
        )
        assert all(instance.tables[role].num_gpus[row] <= n for role, row in rows.items())
        resident = sum(int(instance.resident_mib[role][row]) for role, row in rows.items())
        assert (
            resident + max(int(instance.transient_mib[role][row]) for role, row in rows.items())
            <= instance.capacity_mib[group.device_type]
        )
    durations = {
        k: t[choice.rows[r]] for r, calls in instance.ticks.items() if r != CONTROLLER for k, t in calls.items()
    }
    durations |= {k: t[0] for k, t in instance.ticks[CONTROLLER].items()}
    assert makespan(instance, partition, durations) == ticks


@settings(max_examples=draws(40))
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(10, 40), st.booleans(), st.integers(0, 3))
def test_made_up_instances(seed: int, gpus: int, capacity: int, equal: bool, other: int) -> None:
    roles = PPO[:1] + PPO[2:] if other else PPO
    x = toy_instance(
        "grpo" if other else "ppo",
        roles,
        seed,
        num_gpus=gpus,
        capacity_mib=capacity,
        equal_sizes=equal and not other,
        second_kind=other,
    )
    choice, ticks = greedy(x)
    best = exhaustive(x)
    if choice is None:
        assert ticks == 0
        return
    check(x, choice, ticks)
    assert best[0] is not None
    assert best[1] <= ticks


@pytest.mark.parametrize(
    "job", ["tiny ppo", "tiny remax", "ppo 16", pytest.param("safe-rlhf 32", marks=pytest.mark.slow)]
)
def test_real_jobs_start_within_a_tenth_of_the_optimum(job: str) -> None:
    facts = {
        "tiny ppo": lambda: tiny_facts("ppo", 4),
        "tiny remax": lambda: tiny_facts("remax", 2, 3.4),
        "ppo 16": lambda: make_facts("ppo", nodes=2),
        "safe-rlhf 32": lambda: make_facts("safe-rlhf", nodes=4),
    }[job]()
    x = make_instance(make_problem(facts))
    choice, ticks = greedy(x)
    assert choice is not None
    check(x, choice, ticks)
    best = exhaustive(x, limit_ticks=ticks)[1]
    assert best <= ticks <= 1.1 * best


def test_too_many_allocations_are_sampled_the_same_way_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = toy_instance("ppo", PPO, 1, num_gpus=12, capacity_mib=40)
    whole = greedy(x)
    monkeypatch.setattr(incumbent, "MAX_ALLOCATIONS", 2)
    few = greedy(x)
    assert few == greedy(x)
    assert few[0] is not None
    check(x, *few)
    assert few[1] >= whole[1]


def test_too_large_a_grid_is_drawn_from_and_every_draw_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = toy_instance("ppo", PPO, 1, num_gpus=9, capacity_mib=40)
    whole = greedy(x)
    monkeypatch.setattr(incumbent, "MAX_ALLOCATIONS", 7)
    sizes = [np.asarray([1, 2, 4, 8]), np.asarray([2, 4]), np.asarray([1, 2, 4, 8])]
    for gpus in (4, 5, 9):
        at = _allocations(on_gpus(x, gpus), [TOY] * 3, sizes)
        assert len(at)
        assert all(sum(int(s[i]) for s, i in zip(sizes, row, strict=True)) <= gpus for row in at)
    assert not len(_allocations(on_gpus(x, 3), [TOY] * 3, sizes))
    drawn = greedy(x)
    assert drawn == greedy(x)
    assert drawn[0] is not None
    check(x, *drawn)
    assert drawn[1] >= whole[1]
    tight = toy_instance("ppo", PPO, 1, num_gpus=1, capacity_mib=40)
    assert [n for _, n in greedy(tight)[0].pools] == [1]  # type: ignore[union-attr]


def test_the_last_set_takes_the_largest_pool_that_is_left() -> None:
    x = toy_instance("grpo", ("actor", "reference"), 0, num_gpus=6)
    sizes = [np.asarray([1, 2, 4]), np.asarray([1, 2, 4])]
    assert _allocations(x, [TOY] * 2, sizes).tolist() == [[0, 2], [1, 2], [2, 1]]
    assert _allocations(replace(x, equal_sizes=True), [TOY] * 2, sizes).tolist() == [[0, 0], [1, 1]]
    assert _allocations(x, [TOY], sizes[:1]).tolist() == [[2]]


@settings(max_examples=draws(60))
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(10, 40))
def test_with_room_for_all_it_picks_the_shortest_load_and_more_gpus_are_never_slower(
    seed: int, gpus: int, capacity: int
) -> None:
    """A row runs on any larger pool; and memory that binds nobody leaves every role its fastest row."""
    x = toy_instance("ppo", PPO, seed, num_gpus=gpus, capacity_mib=capacity)
    worth = {(role, TOY): _worth_picking(x, role, TOY) for role in x.tables}
    for group, sizes in x.sizes.items():
        roles = group.roles
        for wide in (x, replace(x, capacity_mib={TOY: 1000})):
            picks = _picked(wide, group, sizes, worth)
            loads = [
                sum(int(sum(t[picks.rows[role][i]] for t in x.ticks[role].values())) for role in roles)
                for i in range(len(picks.sizes))
            ]
            assert loads == sorted(loads, reverse=True)
            for i, n in enumerate(picks.sizes.tolist()):
                assert all(x.tables[role].num_gpus[picks.rows[role][i]] <= n for role in roles)
                if wide is not x:
                    least = sum(
                        int(sum(t[x.rows(role, group, n)] for t in x.ticks[role].values()).min()) for role in roles
                    )
                    assert loads[i] == least


@pytest.mark.parametrize("equal", [False, True])
def test_a_row_runs_on_any_larger_pool(equal: bool) -> None:
    """Rows for 1 GPU only, pools of 4 only: a choice there is, and its pools have 4 GPUs."""
    x = toy_instance("grpo", ("actor", "reference"), 5, num_gpus=8, sizes=(1,), capacity_mib=40, equal_sizes=equal)
    x = replace(x, sizes=dict.fromkeys(x.sizes, (4,)))
    choice, ticks = greedy(x)
    assert choice is not None
    check(x, choice, ticks)
    assert {n for _, n in choice.pools} == {4}


def test_nothing_fits() -> None:
    x = toy_instance("ppo", PPO, 0, capacity_mib=-1)
    assert greedy(x) == (None, 0)


@settings(max_examples=draws(60))
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(10, 40))
def test_polished_it_still_fits_and_is_no_worse(seed: int, gpus: int, capacity: int) -> None:
    x = toy_instance("ppo", PPO, seed, num_gpus=gpus, capacity_mib=capacity)
    choice, ticks = greedy(x)
    if choice is None:
        return
    better, fewer = polished(x, choice, ticks)
    assert fewer <= ticks
    assert better.pools == choice.pools
    check(x, better, fewer)
