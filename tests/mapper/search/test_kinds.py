"""Protects mixed clusters in the search: the right roles on the right GPUs, known by hand and by brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mapper.execution_mode import GENERATOR, ExecutionMode
from mapper.model.instance import make_instance
from mapper.objective import Objective
from mapper.pins import Pin, Share, Spare
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.budgets import budgets_of
from mapper.search.find_plan import find_plan
from profiles.errors import InfeasibleError, InputError
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from simulator.facts import DeviceGroup
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, tiny_facts, toy_instance, workload
from tests.mapper.exhaustive import exhaustive

if TYPE_CHECKING:
    from simulator.facts import Facts

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


def mixed(facts: Facts, nodes: int = 1, gpus_per_node: int = 1, memory_gib: float | None = None) -> Facts:
    """``facts`` (of A100s) with H100 nodes beside them."""
    device = load_device(H100)
    if memory_gib is not None:
        device = device.with_spec(replace(device.spec, memory_bytes=int(memory_gib * 2**30)))
    return replace(facts, others=(DeviceGroup(ClusterGroup(H100, nodes, gpus_per_node, 50e9, gpus_per_node), device),))


def test_by_hand_the_model_with_the_work_gets_the_faster_gpu() -> None:
    """One A100 and one H100 for two models that may not share: two placements are left.

    The actor generates and trains, the reference only scores, so the actor belongs on the H100.
    """
    facts = mixed(tiny_facts("grpo", 1, 20.0, roles={"actor": TINY, "reference": TINY}))
    apart = Share(("actor", "reference"), wanted=False)
    found = find_plan(SearchRequest(facts, pins=(apart,)))
    assert {pool.device: pool.roles for pool in found.plan.pools} == {H100: ("actor",), A100: ("reference",)}
    assert found.status == "optimal"
    swapped = find_plan(SearchRequest(facts, pins=(apart, Pin("actor", device=A100)), runners_up=False))
    assert {pool.device: pool.roles for pool in swapped.plan.pools} == {A100: ("actor",), H100: ("reference",)}
    assert swapped.iteration_s > found.iteration_s


@pytest.mark.parametrize("algorithm", ["ppo", "remax", "grpo"])
@pytest.mark.parametrize("memory_gib", [5.0, 9.0])
def test_equals_brute_force_on_small_priced_jobs(algorithm: str, memory_gib: float) -> None:
    facts = mixed(tiny_facts(algorithm, 2, memory_gib), gpus_per_node=2, memory_gib=memory_gib)
    x = make_instance(make_problem(facts))
    choice, ticks = exhaustive(x)
    found = find_plan(SearchRequest(facts, runners_up=False))
    assert choice is not None
    assert found.iteration_s == pytest.approx(ticks * x.tick_s, abs=x.rounding_s)
    assert check_plan(found.plan, facts) == []
    assert simulate(found.plan, facts).iteration_s == found.iteration_s


def test_more_kinds_are_never_slower_and_one_kind_alone_is_a_mixed_cluster_with_the_other_spared() -> None:
    alone = make_facts("ppo", nodes=1)
    both = mixed(alone, nodes=1, gpus_per_node=8)
    one, two = find_plan(SearchRequest(alone, runners_up=False)), find_plan(SearchRequest(both, runners_up=False))
    assert two.iteration_s <= one.iteration_s
    spared = find_plan(SearchRequest(both, runners_up=False, pins=(Spare(1, H100),)))
    assert spared.plan == one.plan


def test_the_cheapest_plan_weighs_each_kinds_price() -> None:
    """At a hundredth of the price the A100s are worth their slowness, at a hundred times it they are not."""
    facts = mixed(tiny_facts("grpo", 2, 20.0, roles={"actor": TINY}), gpus_per_node=2)
    for price, wanted in ((0.01, A100), (100.0, H100)):
        objective = Objective("cost", ((A100, price), (H100, 1.0)))
        found = find_plan(SearchRequest(facts, objective=objective, runners_up=False))
        assert set(found.plan.gpus) == {wanted}
        used = {A100: price, H100: 1.0}[wanted] * found.plan.num_gpus
        assert found.value == pytest.approx(found.iteration_s * used / 3600)
        assert found.value_bound <= found.value


def test_budgets_count_what_each_kind_costs() -> None:
    x = toy_instance("grpo", ("actor",), 0, num_gpus=2, second_kind=2, sizes=(1, 2))
    assert budgets_of(x) == [1, 2]
    assert budgets_of(replace(x, weight={"toy": 3, "other": 5}, budget=16)) == [3, 5, 6, 10]


def test_training_and_generation_on_different_kinds() -> None:
    """One step off, the trainer pinned to the H100s: the engines take the A100s, which would else be idle."""
    work = workload(64, 512, 512, minibatches=2)
    facts = mixed(make_facts("grpo", "llama-3.2-1b", gpus_per_node=2, work=work), gpus_per_node=2)
    mode = ExecutionMode("one-step-off", dedicated_rollout=True)
    found = find_plan(SearchRequest(facts, modes=(mode,), pins=(Pin("actor", device=H100),)))
    assert found.plan.generation_pool_of("actor").device == A100
    x = make_instance(make_problem(facts, mode=mode, pins=(Pin("actor", device=H100),)))
    assert found.iteration_s == pytest.approx(exhaustive(x)[1] * x.tick_s, abs=x.rounding_s)


def test_refusals() -> None:
    facts = mixed(tiny_facts("grpo", 2, 20.0))
    with pytest.raises(InputError, match="even halves are two pools of one kind"):
        make_problem(mixed(tiny_facts("ppo", 2)), "split", even=True)
    with pytest.raises(InputError, match="unknown device pinned for actor 'b200-sxm'"):
        make_problem(facts, pins=(Pin("actor", device="b200-sxm"),))
    with pytest.raises(InfeasibleError, match=f"8 x {A100} . 8 x {H100}; these 2 conflict"):
        find_plan(
            SearchRequest(
                mixed(make_facts("ppo", "llama-2-7b"), gpus_per_node=8),
                pins=(Pin("actor", device=A100), Pin("reference", num_gpus=1), Spare(1, A100)),
            )
        )
    assert GENERATOR not in make_problem(facts).roles
