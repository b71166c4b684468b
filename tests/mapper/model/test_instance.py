"""Protects the step from seconds and bytes to ticks and MiB: nothing feasible in bytes is lost by more than rounding,
nothing infeasible gets in, and an iteration in ticks is within the stated rounding of one in seconds.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.model.instance import TICKS_PER_ITERATION, _sizes_that_fit, make_instance
from mapper.model.unpriced import NONE_RUNS, least_up_to
from mapper.pins import Pin
from mapper.problem import ColocationGroup, make_problem
from profiles.units import MIB
from simulator.cost.pricing import controller_cost
from simulator.plan.dataflow import CONTROLLER
from tests.builders import make_facts, tiny_facts, toy_table


def test_each_duration_is_rounded_to_the_nearest_tick() -> None:
    facts = make_facts("ppo")
    x = make_instance(make_problem(facts))
    for role, table in x.tables.items():
        assert set(x.ticks[role]) == {call.key for call in x.flow.calls_of(role)}
        for key, seconds in table.durations_s.items():
            assert np.all(np.abs(x.ticks[role][key] * x.tick_s - seconds) <= x.tick_s / 2 + 1e-12)
    advantage = float(controller_cost(facts, x.flow.calls[x.flow.index("compute_advantage")]).time.s)
    assert abs(x.ticks[CONTROLLER]["compute_advantage"][0] * x.tick_s - advantage) <= x.tick_s / 2
    assert x.rounding_s == x.tick_s * len(x.flow.calls) / 2


@pytest.mark.parametrize("job", ["tiny", "ppo 7b 16", "remax 70b 64"])
def test_the_tick_is_a_power_of_ten_fine_enough_for_the_gap(job: str) -> None:
    facts = {
        "tiny": tiny_facts,
        "ppo 7b 16": lambda: make_facts("ppo", nodes=2),
        "remax 70b 64": lambda: make_facts("remax", "llama-2-70b", nodes=8),
    }[job]()
    x = make_instance(make_problem(facts))
    assert math.log10(x.tick_s) == pytest.approx(round(math.log10(x.tick_s)))
    longest_call = max(float(v.min()) for t in x.tables.values() for v in t.durations_s.values())
    assert longest_call / TICKS_PER_ITERATION / 10 < x.tick_s <= longest_call / TICKS_PER_ITERATION
    assert x.rounding_s < 1e-5 * longest_call


def test_memory_is_rounded_against_the_plan() -> None:
    facts = make_facts("ppo", "llama-2-13b", nodes=2)
    x = make_instance(make_problem(facts))
    assert x.capacity_mib[facts.group.device] * MIB <= facts.memory_room_bytes
    for role, table in x.tables.items():
        assert np.all(x.resident_mib[role] * MIB >= table.resident_bytes)
        assert np.all(x.resident_mib[role] * MIB < table.resident_bytes + MIB)
        assert np.all(x.transient_mib[role] * MIB >= table.transient_bytes)


def test_sizes_of_a_set_are_those_where_its_leanest_configurations_fit() -> None:
    x = make_instance(make_problem(make_facts("ppo", "llama-2-13b", nodes=2)))
    for group, sizes in x.sizes.items():
        roles = group.roles
        for n in (1, 2, 4, 8, 16):
            gains = any(np.any(x.tables[role].num_gpus == n) for role in roles)
            rows = {role: x.rows(role, group, n) for role in roles}
            fits = all(len(r) for r in rows.values()) and (
                sum(int(x.resident_mib[role][r].min()) for role, r in rows.items())
                + max(int(x.transient_mib[role][r].min()) for role, r in rows.items())
                <= x.capacity_mib[group.device_type]
            )
            assert (n in sizes) == (fits and gains), (roles, n)


@pytest.mark.parametrize(
    ("even", "pinned", "expected"),
    [(False, None, (1, 4)), (True, None, (1, 2, 4, 8)), (False, 2, (2,)), (False, 8, (8,))],
)
def test_sets_that_must_agree_on_a_size_keep_those_that_gain_nothing(
    even: bool, pinned: int | None, expected: tuple[int, ...]
) -> None:
    """Rows for 1 and 4 GPUs gain nothing on 2 and 8; but the other half of an even split may need just 2."""
    pins = () if pinned is None else (Pin("critic", num_gpus=pinned),)
    problem = make_problem(make_facts("ppo"), "split", even=even, pins=pins)
    tables, need = {"critic": toy_table("critic", np.asarray([1, 4]), {})}, {"critic": np.asarray([5, 3])}
    device_type = problem.facts.group.device
    x = replace(
        make_instance(problem), tables=tables, resident_mib=need, transient_mib=need, capacity_mib={device_type: 10}
    )
    assert _sizes_that_fit(problem, ColocationGroup(("critic",), device_type), x) == expected
    assert (
        _sizes_that_fit(problem, ColocationGroup(("critic",), device_type), replace(x, capacity_mib={device_type: 5}))
        == ()
    )


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99)), max_size=8),
    st.lists(st.integers(0, 10), min_size=1, max_size=5),
)
def test_least_up_to(rows: list[tuple[int, int]], sizes: list[int]) -> None:
    gpus, values = np.asarray(rows, dtype=np.int64).reshape(-1, 2).T
    expected = [min((v for g, v in rows if g <= n), default=NONE_RUNS) for n in sizes]
    assert least_up_to(gpus, values, np.asarray(sizes)).tolist() == expected


def test_rows_and_count() -> None:
    x = make_instance(make_problem(tiny_facts("grpo", 4, roles={"actor": "llama-3.2-1b"}, memory_gib=40.0)))
    group = ColocationGroup(("actor",), x.device_types[0])
    for n in (1, 2, 4):
        runs = x.rows("actor", group, n)
        assert np.all(x.tables["actor"].num_gpus[runs] <= n)
        assert len(runs) == np.count_nonzero(x.tables["actor"].num_gpus <= n) > 0
    assert len(x.rows("actor", group, 4)) == x.num_candidates == len(x.tables["actor"])
