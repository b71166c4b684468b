"""Protects the two references: brute force itself against a brute force without any shortcut, and the paper's
Algorithms 1 and 2 as printed.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.algorithm1 import allocations, d_cost, exhaustive, paper
from mapper.instance import Instance, make_instance
from mapper.problem import make_problem
from mapper.search import build_plan, find_plan
from profiles.hardware import ClusterGroup
from simulator import simulate as simulate_module
from simulator.dataflow import CONTROLLER
from simulator.simulate import play, simulate
from tests.builders import make_facts, toy_instance

JOBS = [
    ("grpo", ("actor", "reference", "reward")),
    ("remax", ("actor", "reference", "reward")),
    ("rloo", ("actor", "reward")),
    ("grpo", ("actor", "reference")),
]


def naive(x: Instance) -> int | None:
    """Everything there is, one by one, played by the event queue."""
    best = None
    for partition in x.partitions:
        pool_of = {role: str(i) for i, roles in enumerate(partition) for role in roles} | {CONTROLLER: CONTROLLER}
        for sizes in itertools.product(*(x.sizes[roles] for roles in partition)):
            if sum(sizes) > x.num_gpus or (x.equal_sizes and len(set(sizes)) > 1):
                continue
            size_of = {role: n for roles, n in zip(partition, sizes, strict=True) for role in roles}
            for rows in itertools.product(*(x.rows(role, size_of[role]).tolist() for role in x.flow.roles)):
                row = dict(zip(x.flow.roles, rows, strict=True))
                if any(
                    sum(x.resident_mib[r][row[r]] for r in roles) + max(x.transient_mib[r][row[r]] for r in roles)
                    > x.capacity_mib
                    for roles in partition
                ):
                    continue
                durations = {k: int(t[row.get(r, 0)]) for r, calls in x.ticks.items() for k, t in calls.items()}
                end = max(record.end_s for record in play(x.flow, durations, pool_of))
                best = end if best is None else min(best, end)
    return best


@settings(max_examples=60)
@given(st.sampled_from(JOBS), st.integers(0, 10_000), st.integers(2, 6), st.integers(8, 40), st.booleans())
def test_exhaustive_equals_brute_force_without_shortcuts(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, capacity: int, equal: bool
) -> None:
    x = toy_instance(*job, seed, num_gpus=gpus, sizes=(1, 2), capacity_mib=capacity, equal_sizes=equal)
    choice, ticks = exhaustive(x)
    assert (ticks if choice is not None else None) == naive(x)


@pytest.mark.parametrize("seed", range(3))
def test_exhaustive_equals_brute_force_for_safe_rlhf_and_ppo(seed: int) -> None:
    for job in (("safe-rlhf", ("actor", "critic", "reference", "reward", "cost")),
                ("ppo", ("actor", "critic", "reference", "reward"))):  # fmt: skip
        x = toy_instance(*job, seed, num_gpus=4, sizes=(1, 2), most_rows=2, capacity_mib=30)
        assert exhaustive(x)[1] == naive(x)


def test_allocations_of_the_paper_use_every_gpu() -> None:
    """C(N - 1, k - 1) of them for k models on N GPUs (paper, section 6), if every whole size is allowed."""
    x = toy_instance("ppo", ("actor", "critic", "reference", "reward"), 0, num_gpus=8, sizes=tuple(range(1, 9)))
    alone = tuple((role,) for role in x.flow.roles)
    all_used = list(allocations(x, alone, use_all=True))
    assert len(all_used) == 35  # C(7, 3)
    assert all(sum(sizes) == 8 for sizes in all_used)
    assert all(sum(sizes) <= 8 for sizes in allocations(x, alone))
    equal = list(allocations(replace(x, equal_sizes=True), alone))
    assert equal == [(1, 1, 1, 1), (2, 2, 2, 2)]


def test_d_cost_by_hand_from_the_papers_lines_25_to_34() -> None:
    x = toy_instance("ppo", ("actor", "critic", "reference", "reward"), 0)
    ticks = {
        "actor": {"transition": 100, "generate_sequences": 10, "update_actor": 7},
        "critic": {"compute_values": 2, "update_critic": 5},
        "reference": {"compute_ref_log_prob": 3},
        "reward": {"compute_reward": 4},
        CONTROLLER: {"compute_advantage": 1000},
    }
    x = replace(x, ticks={r: {k: np.asarray([v]) for k, v in calls.items()} for r, calls in ticks.items()})
    rows = dict.fromkeys(x.flow.roles, 0)
    assert d_cost(x, (("actor", "critic", "reference", "reward"),), rows) == 10 + (2 + 3 + 4) + (7 + 5)
    assert d_cost(x, (("actor", "reference"), ("critic", "reward")), rows) == 10 + max(3, 2 + 4) + max(7, 5)
    assert d_cost(x, (("actor",), ("critic",), ("reference",), ("reward",)), rows) == 10 + 4 + 7


@pytest.mark.parametrize(
    ("algorithm", "model", "nodes"),
    [("ppo", "llama-2-7b", 1), ("ppo", "llama-2-7b", 2), ("ppo", "llama-2-13b", 4), ("remax", "llama-2-13b", 2)],
)
def test_the_papers_plan_is_never_better_than_ours(algorithm: str, model: str, nodes: int) -> None:
    facts = make_facts(algorithm, model, nodes=nodes)
    x = make_instance(make_problem(facts))
    choice, cost_s = paper(x)
    assert choice is not None
    assert sum(n for _, n in choice.pools) == facts.group.num_gpus
    plan = build_plan(x, choice, facts)
    assert simulate_module.d_cost(plan, facts) == pytest.approx(cost_s, abs=x.rounding_s)
    ours = find_plan(facts, runners_up=False)
    assert ours.iteration_s <= simulate(plan, facts).iteration_s + x.rounding_s
    assert cost_s > 0


def test_the_paper_finds_nothing_where_nothing_fits() -> None:
    facts = make_facts("ppo", "llama-2-70b")
    facts = replace(facts, group=ClusterGroup(facts.group.device, 1, 8, 25e9, 8))
    assert paper(make_instance(make_problem(facts))) == (None, 0.0)
