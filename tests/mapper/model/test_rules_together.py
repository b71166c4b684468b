"""Protects the rules as a whole: the model allows what an enumeration does, and needs every one of its rules."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from mapper.model.instance import Instance
from mapper.model.rules import (
    RULES,
    EqualSizes,
    GpusSuffice,
    MemoryShared,
    OneConfiguration,
    OnePlacement,
    PickedValues,
)
from mapper.model.solver import build_model, configured
from mapper.model.variables import Choice
from tests.builders import OTHER, TOY, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, every_combination, least_ticks
from tests.work import HANGS_S


def can_be(x: Instance, choice: Choice) -> bool:
    """Whether the whole model has a solution with these pools and rows."""
    model, v = build_model(x)
    for key, var in v.pool.items():
        model.add(var == (key in choice.pools))
    for role, picks in v.pick.items():
        model.add(picks[choice.rows[role]] == 1)
    code = configured(0, HANGS_S, 1).solve(model)
    assert code in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return code == cp_model.OPTIMAL


@settings(max_examples=draws(80))
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 2), st.booleans(), st.integers(10, 26), st.data())
def test_a_combination_is_allowed_exactly_where_an_enumeration_allows_it(
    seed: int, gpus: int, other: int, equal: bool, capacity: int, data: st.DataObject
) -> None:
    x = toy_instance(
        "grpo",
        ("actor", "reference"),
        seed,
        num_gpus=gpus,
        second_kind=other,
        sizes=(1, 2),
        most_rows=1,
        capacity_mib=capacity,
        equal_sizes=equal and not other,
    )
    x = replace(x, weight={TOY: 3, OTHER: 2}, budget=8) if other else x
    choice = data.draw(st.sampled_from(list(every_combination(x))))
    assert can_be(x, choice) is allowed(x, choice)


@pytest.mark.parametrize(
    "left_out", [OnePlacement, GpusSuffice, EqualSizes, OneConfiguration, PickedValues, MemoryShared]
)
def test_without_any_one_rule_something_better_than_the_best_is_found(
    left_out: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In some instance, so no rule follows from the others, and none is missing from the list."""
    rest = tuple(rule for rule in RULES if type(rule) is not left_out)
    assert len(rest) == len(RULES) - 1
    monkeypatch.setattr("mapper.model.solver.RULES", rest)
    for seed in range(20):
        x = toy_instance(
            "remax",
            ("actor", "reference", "reward"),
            seed,
            num_gpus=3,
            sizes=(1, 2),
            most_rows=1,
            capacity_mib=18,
            equal_sizes=left_out is EqualSizes,
        )
        least = least_ticks(x)
        model, _ = build_model(x)
        solver = configured(0, HANGS_S, 1)
        assert solver.solve(model) == cp_model.OPTIMAL
        if least is None or round(solver.objective_value) < least:
            return
    raise AssertionError(f"{left_out.__name__} changes nothing in 20 instances")
