"""Protects the step from a choice to a plan: each GPU at most once, each role exactly once, and what the rows say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode, mode_of
from mapper.model.instance import Instance, make_instance
from mapper.model.variables import Choice
from mapper.problem import ColocationGroup, Problem, make_problem
from mapper.search.place import build_plan, offload_of, placement_of, straddling
from mapper.search_options import SearchOptions
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from simulator.facts import DeviceGroup
from simulator.feasibility import check_plan
from tests.builders import TINY, make_facts, make_plan, tiny_facts, with_engine_pool, workload
from tests.draws import draws
from tests.mapper.enumeration import allowed

if TYPE_CHECKING:
    from simulator.plan.plan import Plan

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"
OWN = ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2, in_flight_updates=True)
JOBS = [("ppo", SYNC), ("remax", ExecutionMode(dedicated_rollout=True)), ("grpo", OWN)]


@cache
def searched(algorithm: str, mode: ExecutionMode) -> tuple[Problem, Instance]:
    """Two nodes of one kind and one of another, tiny models."""
    facts = make_facts(algorithm, TINY, nodes=2, gpus_per_node=4, work=workload(16, 128, 128, minibatches=2))
    mixed = replace(facts, others=(DeviceGroup(ClusterGroup(H100, 1, 4, 50e9, 4), load_device(H100)),))
    problem = make_problem(mixed, mode=mode)
    return problem, make_instance(problem)


@st.composite
def choices(draw: st.DrawFn) -> tuple[Problem, Instance, Choice]:
    """A placement, pool sizes that the cluster holds, and any row of each role that runs there."""
    problem, x = searched(*draw(st.sampled_from(JOBS)))
    placement, left = draw(st.sampled_from(x.partitions)), dict(x.gpus)
    pools, rows = [], {}
    for i, group in enumerate(placement):
        after = sum(other.device_type == group.device_type for other in placement[i + 1 :])
        n = draw(st.sampled_from([n for n in x.sizes[group] if n <= max(left[group.device_type] - after, 1)]))
        left[group.device_type] -= n
        pools.append((group, n))
        for role in group.roles:
            runs = x.rows(role, group, n)
            rows[role] = int(runs[draw(st.integers(0, len(runs) - 1))])
    return problem, x, Choice(tuple(pools), rows)


@settings(max_examples=draws(60))
@given(choices())
def test_each_gpu_at_most_once_and_each_role_exactly_once(drawn: tuple[Problem, Instance, Choice]) -> None:
    problem, x, choice = drawn
    if not allowed(x, choice):
        return
    plan = build_plan(x, choice, problem)
    taken = [(p.device, gpu) for p in plan.pools for gpu in range(p.first_gpu, p.first_gpu + p.num_gpus)]
    assert len(taken) == len(set(taken)) == sum(n for _, n in choice.pools)
    assert all(gpu < problem.facts.on(device_type).group.num_gpus for device_type, gpu in taken)
    assert sorted(role for pool in plan.pools for role in pool.roles) == sorted(problem.facts.roles)
    assert [entry.role for entry in plan.roles] == list(problem.facts.dataflow.roles)
    assert all(entry.role in plan.pool_of(entry.role).roles for entry in plan.roles)
    assert set(zip(placement_of(plan), (p.num_gpus for p in plan.pools), strict=True)) == set(choice.pools)
    assert mode_of(plan) == problem.mode
    assert check_plan(plan, problem.facts) == []


@settings(max_examples=draws(40))
@given(choices())
def test_every_stage_has_the_layout_of_its_row(drawn: tuple[Problem, Instance, Choice]) -> None:
    """The engine's is the rollout's, where it has a pool of its own, and no other role's."""
    problem, x, choice = drawn
    if not allowed(x, choice):
        return
    plan = build_plan(x, choice, problem)
    for entry in plan.roles:
        training, inference, generation = x.tables[entry.role].records(choice.rows[entry.role])
        assert (entry.training, entry.inference) == (training, inference)
        if entry.role == "actor" and problem.mode.dedicated_rollout:
            assert entry.generation == x.tables[GENERATOR].records(choice.rows[GENERATOR])[2]
            home = next(group for group, _ in choice.pools if GENERATOR in group.roles)
            assert GENERATOR in plan.members(plan.generation_pool_of("actor"))
            assert plan.generation_pool_of("actor").device == home.device_type
        else:
            assert (entry.generation, entry.generation_pool) == (generation, None)


def test_pools_are_named_in_the_order_of_the_dataflow() -> None:
    problem, x = searched("ppo", SYNC)
    groups = [
        ColocationGroup(("reward",), H100),
        ColocationGroup(("critic", "reference"), A100),
        ColocationGroup(("actor",), A100),
    ]
    sizes = (4, 1, 4)
    rows = {r: int(x.rows(r, g, n)[0]) for g, n in zip(groups, sizes, strict=True) for r in g.roles}
    plan = build_plan(x, Choice(tuple(zip(groups, sizes, strict=True)), rows), problem)
    assert plan.placement == "{actor} {critic, reference} {reward}"
    assert [(p.name, p.device, p.first_gpu, p.num_gpus) for p in plan.pools] == [
        ("A", A100, 0, 4),
        ("B", A100, 4, 1),
        ("C", H100, 0, 4),
    ]


def test_what_waits_in_host_memory_is_what_the_row_says() -> None:
    """A role that only scores has no optimizer, so the second entry is its parameters."""
    problem = make_problem(tiny_facts("ppo", 2, 60.0), options=SearchOptions(offload=True))
    x = make_instance(problem, prune=False)
    names = {"critic": ((), ("optimizer",), ("parameters", "optimizer")), "reward": ((), ("parameters",))}
    for role, known in names.items():
        first = {int(n): int(np.flatnonzero(x.tables[role].offload == n)[0]) for n in np.unique(x.tables[role].offload)}
        assert {n: offload_of(x, problem, role, row) for n, row in first.items()} == dict(enumerate(known))


def written(sizes: tuple[int, ...]) -> Plan:
    facts = make_facts(nodes=4)
    roles = facts.dataflow.roles
    return make_plan(facts, (roles[:1], roles[1:]), sizes)


@pytest.mark.parametrize(
    ("sizes", "pod", "lines"),
    [
        ((8, 16), 0, []),
        ((16, 16), 2, []),
        ((8, 16), 2, ["pool B lies in 2 pods"]),  # nodes 1 and 2 of pods of two
        ((8, 24), 2, []),  # three nodes need two pods wherever they lie
    ],
)
def test_a_pool_that_needs_fewer_pods_than_it_touches_is_named(sizes, pod, lines) -> None:  # type: ignore[no-untyped-def]
    facts = make_facts(nodes=4)
    found = straddling(written(sizes), replace(facts, group=replace(facts.group, nodes_per_pod=pod)))
    assert [line[: len("pool B lies in 2 pods")] for line in found] == lines


def test_the_placement_of_a_plan_from_anywhere() -> None:
    plan = written((8, 16))
    assert placement_of(plan) == (
        ColocationGroup(("actor",), A100),
        ColocationGroup(("critic", "reference", "reward"), A100),
    )
    apart = with_engine_pool(plan, 8)
    assert placement_of(apart)[2] == ColocationGroup((GENERATOR,), A100)
