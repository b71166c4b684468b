"""Protects the rules of a placement: each rule alone, with variables fixed to one case it allows and one it forbids."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from ortools.sat.python import cp_model

from mapper.model.instance import Instance
from mapper.model.rules import (
    EqualSizes,
    GpusSuffice,
    MemoryShared,
    OneConfiguration,
    OnePlacement,
    PickedValues,
    Rule,
)
from mapper.model.variables import Variables, make_variables
from tests.builders import TOY, on_gpus, on_toy, toy_instance, toy_table

ROLES = ("actor", "reference")
APART = ACTOR, REFERENCE = on_toy(("actor",), ("reference",))
TOGETHER = (BOTH,) = on_toy(ROLES)


@pytest.fixture
def instance() -> Instance:
    """Actor and reference on 4 GPUs; per role one configuration on 1 GPU and two on 2 GPUs, 10 MiB to share."""
    base = toy_instance("grpo", ROLES, 0, sizes=(1, 2))
    gpus = np.asarray([1, 2, 2])
    ticks = {
        "actor": {
            "transition": np.asarray([1, 2, 3]),
            "generate_sequences": np.asarray([40, 30, 20]),
            "update_actor": np.asarray([9, 8, 7]),
        },
        "reference": {"compute_ref_log_prob": np.asarray([6, 5, 4])},
        "controller": {"compute_advantage": np.asarray([1]), "compute_reward": np.asarray([2])},
    }
    return replace(
        base,
        capacity_mib={TOY: 10},
        ticks=ticks,
        tables={role: toy_table(role, gpus, ticks[role]) for role in ROLES},
        resident_mib={"actor": np.asarray([5, 3, 4]), "reference": np.asarray([4, 2, 3])},
        transient_mib={"actor": np.asarray([4, 2, 3]), "reference": np.asarray([1, 1, 2])},
    )


def holds(rule: Rule, instance: Instance, fix: Callable[[Variables], dict[cp_model.IntVar, int]]) -> bool:
    """Whether ``rule`` alone allows the variables fixed to these values."""
    model = cp_model.CpModel()
    v = make_variables(model, instance)
    rule.build(model, instance, v)
    for var, value in fix(v).items():
        model.add(var == value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    code = solver.solve(model)
    assert code in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE)
    return code != cp_model.INFEASIBLE


def test_one_placement_and_its_sets(instance: Instance) -> None:
    rule = OnePlacement()
    assert holds(rule, instance, lambda v: {v.partition[TOGETHER]: 1, v.shared[BOTH]: 1, v.pool[BOTH, 2]: 1})
    assert holds(rule, instance, lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 1]: 1, v.pool[REFERENCE, 2]: 1})
    assert not holds(rule, instance, lambda v: {v.partition[TOGETHER]: 1, v.partition[APART]: 1})
    assert not holds(rule, instance, lambda v: {v.partition[TOGETHER]: 0, v.partition[APART]: 0})


def test_exactly_the_sets_of_the_placement_get_one_pool_each(instance: Instance) -> None:
    rule = OnePlacement()
    assert not holds(rule, instance, lambda v: {v.partition[TOGETHER]: 1, v.shared[ACTOR]: 1})
    assert not holds(rule, instance, lambda v: {v.partition[TOGETHER]: 1, v.pool[REFERENCE, 1]: 1})
    assert not holds(rule, instance, lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 1]: 0, v.pool[ACTOR, 2]: 0})
    assert not holds(rule, instance, lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 1]: 1, v.pool[ACTOR, 2]: 1})


def test_a_set_without_any_size_cannot_be_placed(instance: Instance) -> None:
    instance = replace(instance, sizes={**instance.sizes, BOTH: ()})
    assert holds(OnePlacement(), instance, lambda v: {v.partition[APART]: 1})
    assert not holds(OnePlacement(), instance, lambda v: {v.partition[TOGETHER]: 1})


def test_gpus_suffice(instance: Instance) -> None:
    rule = GpusSuffice()
    assert holds(rule, instance, lambda v: {v.pool[ACTOR, 2]: 1, v.pool[REFERENCE, 2]: 1})
    assert not holds(rule, on_gpus(instance, 3), lambda v: {v.pool[ACTOR, 2]: 1, v.pool[REFERENCE, 2]: 1})
    assert holds(rule, on_gpus(instance, 3), lambda v: {v.pool[ACTOR, 1]: 1, v.pool[REFERENCE, 2]: 1})


def test_equal_sizes_only_where_the_problem_asks(instance: Instance) -> None:
    rule, equal = EqualSizes(), replace(instance, equal_sizes=True)
    apart = lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 1]: 1, v.pool[REFERENCE, 1]: 0}  # noqa: E731
    assert not holds(rule, equal, apart)
    assert holds(rule, instance, apart)
    assert holds(rule, equal, lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 1]: 1, v.pool[REFERENCE, 1]: 1})
    assert holds(rule, equal, lambda v: {v.partition[APART]: 0, v.pool[ACTOR, 1]: 1, v.pool[REFERENCE, 1]: 0})


def test_equal_sizes_forbids_a_size_that_only_one_set_has(instance: Instance) -> None:
    equal = replace(instance, equal_sizes=True, sizes={**instance.sizes, REFERENCE: (1,)})
    assert not holds(EqualSizes(), equal, lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 2]: 1})
    assert holds(EqualSizes(), equal, lambda v: {v.partition[APART]: 1, v.pool[ACTOR, 1]: 1})


def test_one_configuration_that_the_pool_holds(instance: Instance) -> None:
    """Also one for fewer GPUs than the pool has, never one for more."""
    rule = OneConfiguration()
    assert holds(rule, instance, lambda v: {v.pick["actor"][2]: 1, v.pool[ACTOR, 2]: 1})
    assert holds(rule, instance, lambda v: {v.pick["actor"][0]: 1, v.pool[BOTH, 1]: 1})
    assert holds(rule, instance, lambda v: {v.pick["actor"][0]: 1, v.pool[ACTOR, 1]: 0, v.pool[BOTH, 1]: 0})
    small = lambda v: {v.pool[ACTOR, 2]: 0, v.pool[BOTH, 2]: 0, v.pool[ACTOR, 1]: 1}  # noqa: E731
    assert holds(rule, instance, lambda v: {**small(v), v.pick["actor"][0]: 1})
    assert not holds(rule, instance, lambda v: {**small(v), v.pick["actor"][1]: 1})
    assert not holds(rule, instance, lambda v: {**dict.fromkeys(v.pool.values(), 0), v.pick["actor"][0]: 1})
    assert not holds(rule, instance, lambda v: {v.pick["actor"][0]: 1, v.pick["actor"][1]: 1})
    assert not holds(rule, instance, lambda v: dict.fromkeys(v.pick["actor"], 0))
    assert not holds(rule, instance, lambda v: {v.pick["actor"][1]: 1, v.pool[ACTOR, 2]: 0, v.pool[BOTH, 2]: 0})


def test_picked_values_are_those_of_the_configuration(instance: Instance) -> None:
    rule = PickedValues()

    def second(v: Variables) -> dict[cp_model.IntVar, int]:
        return {var: int(i == 1) for i, var in enumerate(v.pick["actor"])}

    assert holds(rule, instance, lambda v: {**second(v), v.resident["actor"]: 3, v.transient["actor"]: 2})
    assert holds(rule, instance, lambda v: {**second(v), v.duration["transition"]: 2, v.duration["update_actor"]: 8})
    assert not holds(rule, instance, lambda v: {**second(v), v.resident["actor"]: 2})
    assert not holds(rule, instance, lambda v: {**second(v), v.transient["actor"]: 3})
    assert not holds(rule, instance, lambda v: {**second(v), v.duration["generate_sequences"]: 29})
    assert not holds(rule, instance, lambda v: {v.duration["compute_reward"]: 1})


def test_memory_is_shared_in_a_set(instance: Instance) -> None:
    """Every role's resident part and the largest transient part: 5 + 4 + 1 fits in 10 and 5 + 4 + 2 does not."""
    rule = MemoryShared()
    need = lambda v, t: {v.resident["actor"]: 5, v.resident["reference"]: 4, v.transient["actor"]: t}  # noqa: E731
    assert holds(rule, instance, lambda v: {**need(v, 1), v.shared[BOTH]: 1, v.transient["reference"]: 0})
    assert not holds(rule, instance, lambda v: {**need(v, 2), v.shared[BOTH]: 1})
    assert not holds(rule, instance, lambda v: {**need(v, 0), v.shared[BOTH]: 1, v.transient["reference"]: 2})
    assert holds(rule, instance, lambda v: {**need(v, 4), v.shared[BOTH]: 0, v.shared[ACTOR]: 1})
    lean = replace(instance, capacity_mib={TOY: 8})
    assert not holds(rule, lean, lambda v: {**need(v, 4), v.shared[BOTH]: 0, v.shared[ACTOR]: 1})
