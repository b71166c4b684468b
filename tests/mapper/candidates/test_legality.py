"""Protects that what the search lists and what the checker accepts is one thing: asked both ways, and on whole jobs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.candidates.layouts import degrees, generation_layouts, generator_gpus, loads, stage_counts
from mapper.execution_mode import ExecutionMode
from mapper.pins import Pin
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.errors import InfeasibleError
from profiles.models.catalogue import load_model
from profiles.models.shape import ModelShape
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan
from tests.builders import MOE, TINY, engine_layout, make_facts, make_plan, replace_role, workload
from tests.draws import draws

SHAPES = [
    TINY,
    *(load_model(m) for m in ("llama-2-7b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b", MOE, "deepseek-v2-lite")),
]
POWERS = [1, 2, 4, 8, 16, 32]


def of(shape: ModelShape, nodes: int, samples: int) -> tuple[Facts, Plan]:
    """A job of one model that trains and generates, with memory for anything, and a plan of it to change."""
    facts = make_facts(
        "grpo",
        roles={"actor": shape},
        nodes=nodes,
        work=workload(samples, 64, 64, minibatches=1),
        memory_bytes=2**50,
        generation="vllm@0.32",
        training="megatron-core@0.16",
    )
    plan = make_plan(facts, (("actor",),), (8 * nodes,))
    engine = engine_layout(facts, "actor", 1, 1)
    return facts, replace_role(plan, "actor", training=ParallelLayout(dp=1), generation=engine)


def accepts(plan: Plan, facts: Facts, **layouts: ParallelLayout | GenerationLayout) -> bool:
    return check_plan(replace_role(plan, "actor", **layouts), facts) == []


@settings(max_examples=draws(40))
@given(shape=st.sampled_from(SHAPES), nodes=st.integers(1, 4), samples=st.sampled_from([3, 8, 20, 512]))
def test_a_spread_is_listed_if_and_only_if_the_checker_accepts_it(shape: ModelShape, nodes: int, samples: int) -> None:
    facts, plan = of(shape, nodes, samples)
    listed, gpus = set(degrees(facts, shape, 8 * nodes, samples)), 8 * nodes
    for tp, pp, ep in itertools.product([1, 2, 4, 8], [1, 2, 3, 4, 6, 7, 8, 12, 14, 16], [*POWERS, 3, 5]):
        for dp in {1, 2, 3, 4, 8, gpus // (tp * pp)} - {0}:
            accepted = accepts(plan, facts, training=ParallelLayout(dp=dp, tp=tp, pp=pp, ep=ep))
            here = dp in loads(samples, gpus // (tp * pp)) and pp in stage_counts(shape.num_layers) and ep in POWERS
            assert ((dp, tp, pp, 1, ep) in listed) == (accepted and here), (dp, tp, pp, ep)


@settings(max_examples=draws(40))
@given(shape=st.sampled_from(SHAPES), nodes=st.integers(1, 4), samples=st.sampled_from([3, 8, 20, 512]))
def test_an_engine_is_listed_if_and_only_if_the_checker_accepts_it(shape: ModelShape, nodes: int, samples: int) -> None:
    facts, plan = of(shape, nodes, samples)
    found = generation_layouts(facts, shape, 8 * nodes)
    listed = set(zip(found.dp.tolist(), found.tp.tolist(), found.pp.tolist(), strict=True))
    for tp, pp in itertools.product([1, 2, 4, 8], [1, 2, 4, 8, 16]):
        dp, rest = divmod(8 * nodes, tp * pp)
        if dp and not rest:
            engine = engine_layout(facts, "actor", dp, tp, pp, slots=1)
            assert ((dp, tp, pp) in listed) == accepts(plan, facts, generation=engine), (dp, tp, pp)
    assert all(accepts(plan, facts, generation=engine_layout(facts, "actor", *x, slots=1)) for x in listed)


def test_numbers_of_gpus_for_engines_are_those_of_engines_that_there_are() -> None:
    """Sixteen stages of 28 layers leave two of them empty, so 2,048 GPUs are no 128 engines of sixteen."""
    facts, shape = make_facts(model="qwen2.5-7b", nodes=256, work=workload(128, minibatches=1)), SHAPES[2]
    used = generator_gpus(facts, shape, (8 * 256,))
    for n in used:
        found = generation_layouts(facts, shape, n)
        assert np.all(found.num_gpus == n)
        assert set(found.pp.tolist()) <= {1, 2, 4}


@pytest.mark.parametrize("dedicated_rollout", [False, True])
def test_stages_without_a_layer_are_refused_by_the_name_of_the_pin(dedicated_rollout: bool) -> None:
    """28 layers on eight stages: seven of four, and one of none."""
    facts = make_facts(
        "grpo",
        roles={"actor": "qwen2.5-7b"},
        nodes=2,
        work=workload(64, 512, 512, minibatches=1),
        device="h100-80gb-sxm",
        training="megatron-core@0.16",
        generation="vllm@0.32",
    )
    pin = Pin("generator" if dedicated_rollout else "actor", generation={"pp": 8})
    with pytest.raises(InfeasibleError, match=r"no plan fits the pin of .*generation pp 8 .*28 layers; loosen the pin"):
        find_plan(
            SearchRequest(
                facts, pins=(pin,), modes=(ExecutionMode(dedicated_rollout=dedicated_rollout),), runners_up=False
            )
        )
