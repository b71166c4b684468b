"""Protects the two references: brute force itself against a brute force without any shortcut, and the paper's
Algorithms 1 and 2 as printed.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.analysis.algorithm1 import allocations, d_cost, paper
from mapper.execution_mode import ExecutionMode
from mapper.model.instance import make_instance
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search.place import build_plan
from profiles.hardware import ClusterGroup
from simulator.plan.dataflow import CONTROLLER
from simulator.play.simulate import simulate
from tests.builders import make_facts, on_toy, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import least_ticks
from tests.mapper.exhaustive import exhaustive
from tests.paper_cost import paper_cost_s

JOBS = [
    ("grpo", ("actor", "reference", "reward")),
    ("remax", ("actor", "reference", "reward")),
    ("rloo", ("actor", "reward")),
    ("grpo", ("actor", "reference")),
]


@settings(max_examples=draws(60))
@given(st.sampled_from(JOBS), st.integers(0, 10_000), st.integers(2, 6), st.integers(8, 40), st.booleans())
def test_exhaustive_equals_brute_force_without_shortcuts(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, capacity: int, equal: bool
) -> None:
    x = toy_instance(*job, seed, num_gpus=gpus, sizes=(1, 2), capacity_mib=capacity, equal_sizes=equal)
    choice, ticks = exhaustive(x)
    assert (ticks if choice is not None else None) == least_ticks(x)


MODES = [
    ExecutionMode(dedicated_rollout=True),
    ExecutionMode("one-step-off", dedicated_rollout=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2, in_flight_updates=True),
]
"""Generation on a dedicated pool: in turn, at once, and with updates in flight."""


@settings(max_examples=draws(40))
@given(st.sampled_from(JOBS[2:]), st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3), st.integers(12, 40))
def test_exhaustive_equals_brute_force_on_two_kinds_of_gpu(
    job: tuple[str, tuple[str, ...]], seed: int, first: int, second: int, capacity: int
) -> None:
    x = toy_instance(*job, seed, num_gpus=first, second_kind=second, sizes=(1, 2), most_rows=2, capacity_mib=capacity)
    x = replace(x, weight={"toy": 3, "other": 2}, budget=8) if seed % 2 else x
    choice, ticks = exhaustive(x)
    assert (ticks if choice is not None else None) == least_ticks(x)


@settings(max_examples=draws(40))
@given(
    st.sampled_from(JOBS[2:]),
    st.sampled_from(MODES),
    st.integers(0, 10_000),
    st.integers(2, 4),
    st.integers(0, 1),
    st.integers(12, 40),
)
def test_exhaustive_equals_brute_force_with_a_generation_pool(
    job: tuple[str, tuple[str, ...]], mode: ExecutionMode, seed: int, first: int, second: int, capacity: int
) -> None:
    x = toy_instance(
        *job, seed, num_gpus=first, second_kind=second, sizes=(1, 2), most_rows=2, capacity_mib=capacity, mode=mode
    )
    choice, ticks = exhaustive(x)
    assert (ticks if choice is not None else None) == least_ticks(x)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_exhaustive_equals_brute_force_for_safe_rlhf_and_ppo(seed: int) -> None:
    for job in (
        ("safe-rlhf", ("actor", "critic", "reference", "reward", "cost")),
        ("ppo", ("actor", "critic", "reference", "reward")),
    ):
        x = toy_instance(*job, seed, num_gpus=4, sizes=(1, 2), most_rows=2, capacity_mib=30)
        assert exhaustive(x)[1] == least_ticks(x)


def test_allocations_of_the_paper_use_every_gpu() -> None:
    """C(N - 1, k - 1) of them for k models on N GPUs (paper, section 6), if every whole size is allowed."""
    x = toy_instance("ppo", ("actor", "critic", "reference", "reward"), 0, num_gpus=8, sizes=tuple(range(1, 9)))
    alone = on_toy(*((role,) for role in x.flow.roles))
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
    assert d_cost(x, on_toy(("actor", "critic", "reference", "reward")), rows) == 10 + (2 + 3 + 4) + (7 + 5)
    assert d_cost(x, on_toy(("actor", "reference"), ("critic", "reward")), rows) == 10 + max(3, 2 + 4) + max(7, 5)
    assert d_cost(x, on_toy(("actor",), ("critic",), ("reference",), ("reward",)), rows) == 10 + 4 + 7


@pytest.mark.parametrize(
    ("algorithm", "model", "nodes"),
    [("ppo", "llama-2-7b", 1), ("ppo", "llama-2-7b", 2), ("ppo", "llama-2-13b", 4), ("remax", "llama-2-13b", 2)],
)
def test_the_papers_plan_is_never_better_than_ours(algorithm: str, model: str, nodes: int) -> None:
    facts = make_facts(algorithm, model, nodes=nodes)
    problem = make_problem(facts)
    x = make_instance(problem)
    choice, cost_s = paper(x)
    assert choice is not None
    assert sum(n for _, n in choice.pools) == facts.group.num_gpus
    plan = build_plan(x, choice, problem)
    assert paper_cost_s(plan, facts) == pytest.approx(cost_s, abs=x.rounding_s)
    ours = find_plan(SearchRequest(facts, runners_up=False))
    assert ours.iteration_s <= simulate(plan, facts).iteration_s + x.rounding_s
    assert cost_s > 0


def test_the_paper_finds_nothing_where_nothing_fits() -> None:
    facts = make_facts("ppo", "llama-2-70b")
    facts = replace(facts, group=ClusterGroup(facts.group.device, 1, 8, 25e9, 8))
    assert paper(make_instance(make_problem(facts))) == (None, 0.0)
