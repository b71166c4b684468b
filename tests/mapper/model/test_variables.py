"""Protects the solver's variables: every choice can be said with them, and is read back as it was."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from mapper.model.instance import Instance
from mapper.model.solver import build_model, configured
from mapper.model.variables import Choice, extract, hint, make_variables
from tests.builders import on_toy, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import end_ticks, every_choice
from tests.work import HANGS_S

ROLES = ("actor", "reference")
JOBS = [("grpo", ROLES), ("remax", (*ROLES, "reward"))]


@settings(max_examples=draws(60))
@given(st.sampled_from(JOBS), st.integers(0, 10_000), st.integers(2, 5), st.integers(0, 2), st.integers(0, 10_000))
def test_a_choice_fixed_in_the_model_is_read_back_and_ends_when_it_ends(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, other: int, at: int
) -> None:
    """So bounds of variables cut nothing off, and the model's time is that of the calls one by one."""
    rows = 1 if len(job[1]) > 2 else 2
    x = toy_instance(*job, seed, num_gpus=gpus, sizes=(1, 2), most_rows=rows, capacity_mib=30, second_kind=other)
    there = every_choice(x)
    if not there:
        return
    choice = there[at % len(there)]
    model, v = build_model(x)
    for key, var in v.pool.items():
        model.add(var == (key in choice.pools))
    for role, picks in v.pick.items():
        model.add(picks[choice.rows[role]] == 1)
    solver = configured(0, HANGS_S, 1)
    assert solver.solve(model) == cp_model.OPTIMAL
    found = extract(solver, v)
    assert (set(found.pools), found.rows) == (set(choice.pools), choice.rows)
    assert solver.objective_value == solver.value(v.makespan) == end_ticks(x, choice)


def by_hand() -> Instance:
    """Two sizes, two rows a role."""
    x = toy_instance("grpo", ROLES, 0, sizes=(1, 2))
    two = np.asarray([0, 1])
    return replace(
        x,
        tables={role: table.take(two) for role, table in x.tables.items()},
        ticks={
            "actor": {
                "transition": np.asarray([1, 2]),
                "generate_sequences": np.asarray([30, 20]),
                "update_actor": np.asarray([9, 4]),
            },
            "reference": {"compute_ref_log_prob": np.asarray([6, 5])},
            "controller": {"compute_reward": np.asarray([7]), "compute_advantage": np.asarray([0])},
        },
        resident_mib={"actor": np.asarray([5, 3]), "reference": np.asarray([4, 2])},
        transient_mib={"actor": np.asarray([4, 8]), "reference": np.asarray([1, 1])},
    )


def test_there_is_one_variable_for_everything_that_is_decided() -> None:
    x, model = by_hand(), cp_model.CpModel()
    v = make_variables(model, x)
    both, actor, reference = (*on_toy(ROLES), *on_toy(("actor",), ("reference",)))
    assert set(v.partition) == {(both,), (actor, reference)}
    assert set(v.shared) == {both, actor, reference}
    assert set(v.pool) == {(group, n) for group in (both, actor, reference) for n in (1, 2)}
    assert {role: len(picks) for role, picks in v.pick.items()} == {"actor": 2, "reference": 2}


def test_bounds_are_the_largest_values_of_the_tables() -> None:
    """No call takes longer than its slowest row, and the iteration no longer than all calls in turn."""
    x, model = by_hand(), cp_model.CpModel()
    v = make_variables(model, x)
    most = {name: max(var.proto.domain) for name, var in v.duration.items()}
    assert most == {
        "transition": 2,
        "generate_sequences": 30,
        "update_actor": 9,
        "compute_ref_log_prob": 6,
        "compute_reward": 7,
        "compute_advantage": 0,
    }
    assert max(v.makespan.proto.domain) == 2 + 30 + 9 + 6 + 7
    assert {max(end.proto.domain) for end in v.end.values()} == {54}
    assert {role: max(var.proto.domain) for role, var in v.resident.items()} == {"actor": 5, "reference": 4}
    assert {role: max(var.proto.domain) for role, var in v.transient.items()} == {"actor": 8, "reference": 1}


def test_a_hint_says_every_pool_and_every_row_once() -> None:
    x = by_hand()
    model, v = build_model(x)
    (both,) = on_toy(ROLES)
    choice = Choice(((both, 2),), {"actor": 1, "reference": 0})
    hint(model, v, choice)
    offered = dict(zip(model.proto.solution_hint.vars, model.proto.solution_hint.values, strict=True))
    said = {key: offered[var.index] for key, var in v.pool.items()}
    assert said == {key: int(key == (both, 2)) for key in v.pool}
    assert [offered[var.index] for var in v.pick["actor"]] == [0, 1]
    assert [offered[var.index] for var in v.pick["reference"]] == [1, 0]
    assert len(offered) == len(v.pool) + 4
