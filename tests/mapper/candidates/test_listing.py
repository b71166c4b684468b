"""Protects the candidate tables: their numbers are those of ``simulate`` and the checker, and pruning is safe."""

from dataclasses import replace

import numpy as np
import pytest

from mapper.candidates import pruning
from mapper.candidates.table import RoleTable, to_mib
from mapper.model.instance import make_instance
from mapper.problem import ColocationGroup, Problem, make_problem
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.plan import Plan, Pool, RolePlan
from simulator.pool_memory import pool_memory
from tests.builders import MOE, make_facts, tiny_facts, workload
from tests.mapper.exhaustive import exhaustive
from tests.mapper.tables import role_table


def rows_of(table: RoleTable, count: int = 25) -> list[int]:
    return np.random.default_rng(0).permutation(len(table))[:count].tolist()


def entry_of(table: RoleTable, row: int) -> RolePlan:
    training, inference, generation = table.records(row)
    return RolePlan(role=table.role, pool="A", training=training, inference=inference, generation=generation)


@pytest.mark.parametrize("model", ["llama-2-7b", MOE])
def test_every_row_passes_the_checker_alone(model: str) -> None:
    facts = make_facts("grpo", model, nodes=2, work=workload(128))
    table = role_table(make_problem(facts), "actor")
    for row in rows_of(table, 60):
        n = int(table.num_gpus[row])
        pool = Pool(name="A", device=facts.group.device, first_gpu=0, num_gpus=n, roles=("actor",))
        plan = Plan(algorithm="grpo", placement="{actor}", pools=(pool,), roles=(entry_of(table, row),))
        assert check_plan(plan, facts) == [], plan
        used = pool_memory(plan, pool, facts).used_bytes - facts.training.memory_reserve_bytes
        assert used == pytest.approx(table.resident_bytes[row] + table.transient_bytes[row], abs=20)


def alone(facts: Facts, *partitions: tuple[tuple[str, ...], ...]) -> Problem:
    device_type = facts.group.device
    placements = tuple(tuple(ColocationGroup(roles, device_type) for roles in sets) for sets in partitions)
    return replace(make_problem(facts), partitions=placements)


@pytest.mark.parametrize(
    ("algorithm", "memory_gib", "gpus"), [("ppo", 8.0, 2), ("ppo", 4.2, 2), ("remax", 3.4, 2), ("remax", 8.0, 4)]
)
def test_pruning_keeps_the_optimum(algorithm: str, memory_gib: float, gpus: int) -> None:
    problem = make_problem(tiny_facts(algorithm, gpus, memory_gib))
    pruned, whole = make_instance(problem), make_instance(problem, prune=False)
    assert pruned.num_candidates < whole.num_candidates
    assert pruned.tick_s == whole.tick_s
    assert exhaustive(pruned)[1] == exhaustive(whole)[1] > 0


@pytest.mark.parametrize(("algorithm", "memory_gib", "gpus"), [("ppo", 4.2, 2), ("remax", 3.4, 2), ("grpo", 3.0, 2)])
def test_no_pruning_of_any_kind_gives_the_same_optimum(
    algorithm: str, memory_gib: float, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``prune=False`` still drops dominated rows of one call; here nothing is dropped but what cannot fit."""
    problem = make_problem(tiny_facts(algorithm, gpus, memory_gib))
    pruned = make_instance(problem)
    monkeypatch.setattr(pruning, "non_dominated_by_group", lambda key, values: np.arange(len(key)))
    whole = make_instance(problem, prune=False)
    assert whole.num_candidates > 2 * pruned.num_candidates
    assert exhaustive(pruned)[1] == exhaustive(whole)[1] > 0


def test_pruned_rows_are_a_subset_and_each_dropped_row_has_a_better_one() -> None:
    problem = make_problem(tiny_facts("ppo", 4))
    pruned, whole = role_table(problem, "critic"), role_table(problem, "critic", prune=False)
    kept, kept_need = to_mib(pruned.resident_bytes), to_mib(pruned.resident_bytes) + to_mib(pruned.transient_bytes)
    resident, need = to_mib(whole.resident_bytes), to_mib(whole.resident_bytes) + to_mib(whole.transient_bytes)
    for row in range(len(whole)):
        no_worse = (kept <= resident[row]) & (kept_need <= need[row]) & (pruned.num_gpus <= whole.num_gpus[row])
        for key, seconds in whole.durations_s.items():
            no_worse &= pruned.durations_s[key] <= seconds[row]
        assert np.any(no_worse)


def test_a_generating_role_may_use_every_gpu_of_its_pool() -> None:
    """128 samples of an update on 40 GPUs: 32 ranks train as fast, but then only 32 GPUs generate."""
    table = role_table(make_problem(make_facts("grpo", nodes=6)), "actor")
    weights = table.layouts.weights
    assert np.any((weights.dp == 40) & (weights.num_gpus == 40))


def test_nothing_that_cannot_fit_alone_is_offered() -> None:
    facts = make_facts("ppo", "llama-2-13b")
    table = role_table(make_problem(facts), "actor")
    room = facts.memory_room_bytes
    assert np.all(table.resident_bytes + table.transient_bytes <= room)
    assert set(table.num_gpus.tolist()) == {4, 8}  # 13 B x 18 bytes do not fit on 2 GPUs


def test_a_model_that_fits_nowhere_gives_an_empty_table() -> None:
    """Not a crash: the search explains what is missing."""
    for memory_gib in (0.5, 1.2):  # less than the reserve; not even one call's working memory
        problem = make_problem(tiny_facts("grpo", 2, memory_gib, roles={"actor": "llama-2-7b"}))
        assert len(role_table(problem, "actor")) == 0
