"""Protects what the host's launches cost a trainer: a floor under a layer, counted from it, and none under graphs."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost.compute import Batch
from simulator.cost.host_launches import BACKWARD, launches_of_layer, paced
from simulator.cost.score import inference_cost
from simulator.cost.train import one_pass, training_cost
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts

MOE, DENSE = load_model("qwen3-30b-a3b"), load_model("qwen3-8b")
EP8 = Layouts.of([ParallelLayout(dp=8, ep=8)])
MANY = Batch(np.asarray([16384.0]), np.asarray([4.0]), np.asarray([4096.0]))
SMALL = Batch(np.asarray([512.0]), np.asarray([1.0]), np.asarray([512.0]))


def facts(host_s: float = 40e-6, **how: object) -> Facts:
    found = make_facts("grpo", MOE, device="b200-sxm", training="megatron-core@0.16")
    training = replace(found.training, host_s_per_launch=host_s)
    return replace(found, training=training, implementation=Implementation(**how))  # type: ignore[arg-type]


def launches(shape=MOE, layouts=EP8, **how: object) -> float:
    return float(launches_of_layer(facts(**how), shape, layouts)[0])


def test_experts_the_dispatcher_and_quantisation_are_launched() -> None:
    assert launches() > launches(DENSE)
    assert launches(layouts=Layouts.of([ParallelLayout(dp=64, ep=64)])) == launches() - 2 * (128 / 8 - 128 / 64)
    assert launches(expert_dispatch="hybrid") < launches(expert_dispatch="deepep") < launches()
    assert launches(training_dtype="fp8") > launches()
    assert launches(DENSE, Layouts.of([ParallelLayout(dp=2, tp=2, cp=2)])) > launches(DENSE)
    assert launches(expert_activation="unfused") > launches()


def test_fsdp_waits_for_its_host_in_small_micro_batches_of_a_small_model() -> None:
    """An eager layer of a 0.5B model has 0.5 ms of launches and a third of that of work; one of 8B hides them."""
    alone, small = Layouts.of([ParallelLayout(dp=8, zero_stage=3)]), load_model("qwen2.5-0.5b")
    found = make_facts("grpo", small, device="h100-80gb-sxm", training="fsdp@2.13")
    eager = replace(found, implementation=Implementation(kernels="eager"))
    idle = replace(eager, training=replace(eager.training, host_s_per_launch=0.0))
    waits = [
        float(one_pass(f, shape, "lm", alone, SMALL if shape is small else MANY).layer_forward.time.s[0])
        for shape in (small, DENSE)
        for f in (eager, idle)
    ]
    assert waits[0] == pytest.approx(10e-6 * float(launches_of_layer(eager, small, alone)[0]))
    assert waits[0] > 2 * waits[1]
    assert waits[2] == waits[3]


def test_a_grouped_product_is_one_launch_for_all_experts() -> None:
    """128 experts on a rank: 256 calls of cuBLAS under Megatron-Core, none beside the grouped ones under FSDP."""
    alone = Layouts.of([ParallelLayout(dp=8)])
    apart = facts()
    grouped = replace(apart, training=replace(apart.training, grouped_kernels=True))
    counts = [float(launches_of_layer(f, MOE, alone)[0]) for f in (apart, grouped)]
    assert counts[0] - counts[1] == 2 * 128


def test_graphs_take_launches_away() -> None:
    parts = [launches(captured=part) for part in ((), ("router",), ("router", "preprocess"))]
    assert parts == sorted(parts, reverse=True) and len(set(parts)) == 3
    assert launches(captured=("iteration",)) == 0.0


def test_a_layer_takes_the_longer_of_host_and_device() -> None:
    slow, none = facts(), facts(0.0)
    num = launches_of_layer(slow, MOE, EP8)
    one, bare = (one_pass(f, MOE, "lm", EP8, SMALL) for f in (slow, none))
    assert float(one.layer_forward.time.s[0]) == pytest.approx(float(num[0]) * 40e-6)
    assert float(one.layer_backward.time.s[0]) == pytest.approx(BACKWARD * float(num[0]) * 40e-6)
    assert float(paced(slow, bare.layer_forward, num * 0.0).time.s[0]) == float(bare.layer_forward.time.s[0])
    many = Batch(np.asarray([65536.0]), np.asarray([16.0]), np.asarray([4096.0]))
    assert float(one_pass(slow, MOE, "lm", EP8, many).layer_forward.time.s[0]) > float(num[0]) * 40e-6


def test_recomputing_launches_again() -> None:
    full = Layouts.of([ParallelLayout(dp=8, ep=8, recompute="full")])
    one = one_pass(facts(), MOE, "lm", full, SMALL)
    assert float(one.layer_backward.time.s[0]) == pytest.approx((1.0 + BACKWARD) * float(one.layer_forward.time.s[0]))


def test_scoring_is_paced_too_and_captured_iterations_are_not() -> None:
    paced_s, captured_s = (
        float(inference_cost(f, MOE, "lm", EP8).time.s[0]) for f in (facts(), facts(captured=("iteration",)))
    )
    assert captured_s < paced_s
    assert float(training_cost(facts(0.0), MOE, "lm", EP8).time.s[0]) == pytest.approx(
        float(training_cost(facts(captured=("iteration",)), MOE, "lm", EP8).time.s[0])
    )
