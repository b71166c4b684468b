"""Protects the step from seconds and bytes to ticks and MiB: nothing feasible in bytes is lost by more than rounding,
nothing infeasible gets in, and an iteration in ticks is within the stated rounding of one in seconds.
"""

import math

import numpy as np
import pytest

from mapper.instance import TICKS_PER_ITERATION, make_instance
from mapper.problem import make_problem
from profiles.units import MIB
from simulator.dataflow import CONTROLLER
from simulator.pricing import controller_cost
from tests.builders import make_facts, tiny_facts


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
    assert x.capacity_mib * MIB <= facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes
    for role, table in x.tables.items():
        assert np.all(x.resident_mib[role] * MIB >= table.resident_bytes)
        assert np.all(x.resident_mib[role] * MIB < table.resident_bytes + MIB)
        assert np.all(x.transient_mib[role] * MIB >= table.transient_bytes)


def test_sizes_of_a_set_are_those_where_its_leanest_configurations_fit() -> None:
    x = make_instance(make_problem(make_facts("ppo", "llama-2-13b", nodes=2)))
    for roles, sizes in x.sizes.items():
        for n in (1, 2, 4, 8, 16):
            rows = {role: x.rows(role, n) for role in roles}
            fits = all(len(r) for r in rows.values()) and (
                sum(int(x.resident_mib[role][r].min()) for role, r in rows.items())
                + max(int(x.transient_mib[role][r].min()) for role, r in rows.items())
                <= x.capacity_mib
            )
            assert (n in sizes) == fits, (roles, n)


def test_rows_and_count() -> None:
    x = make_instance(make_problem(tiny_facts("grpo", 4, roles={"actor": "llama-3.2-1b"}, memory_gib=40.0)))
    for n in (1, 2, 4):
        assert np.all(x.tables["actor"].num_gpus[x.rows("actor", n)] == n)
    assert sum(len(x.rows("actor", n)) for n in (1, 2, 4)) == x.num_candidates == len(x.tables["actor"])
