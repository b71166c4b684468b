"""Protects plans of every schedule and length: what the search priced is what ``simulate`` prices, and it fits."""

import pytest

from mapper.execution_mode import SYNC, ExecutionMode
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import make_facts, workload

FEW = [(8, 8, 2000.0, 16000.0, 32000), (4, 8, 2000.0, 16000.0, 32000), (2, 8, 1000.0, 8000.0, 16000)]
"""Prompts, responses to each, and the mean, p99 and most tokens of a response: few sequences with long tails."""

ENDLESS = [
    ExecutionMode("async", dedicated_rollout=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2),
    ExecutionMode("async", dedicated_rollout=True, in_flight_updates=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2, in_flight_updates=True),
]


def grpo(work: Workload, nodes: int = 1) -> Facts:
    return make_facts(
        "grpo",
        roles={"actor": "qwen2.5-7b", "reference": "qwen2.5-7b"},
        work=work,
        nodes=nodes,
        device="h100-80gb-sxm",
        training="megatron-core@0.16",
        generation="vllm@0.32",
    )


def long_tails(prompts: int, samples: int, mean: float, p99: float, most: int, minibatches: int = 1) -> Workload:
    lengths = LengthDistribution("lognormal", mean, most, p99)
    return workload(prompts, 512, lengths, samples_per_prompt=samples, minibatches=minibatches)


@pytest.mark.parametrize("lengths", FEW)
@pytest.mark.parametrize(
    "mode",
    [SYNC, ExecutionMode(dedicated_rollout=True), ExecutionMode("one-step-off", dedicated_rollout=True)],
    ids=str,
)
def test_few_sequences_with_long_tails_have_a_cache_for_the_longest(
    lengths: tuple[int, int, float, float, int], mode: ExecutionMode
) -> None:
    facts = grpo(long_tails(*lengths))
    result = find_plan(SearchRequest(facts, runners_up=False, modes=(mode,)))
    engine = result.plan.role("actor").generation
    assert engine is not None
    one_token = 28 * 2 * 128 * 2 * (4 / engine.tp) / engine.pp  # layers, keys and values, width, bytes, KV heads
    assert engine.kv_cache_bytes >= one_token * (512 + lengths[-1])
    assert check_plan(result.plan, facts) == []


@pytest.mark.parametrize("lengths", [(64, 8, 2000.0, 8000.0, 16000, 4), (64, 8, 1000.0, 3000.0, 4096, 4)])
@pytest.mark.parametrize("mode", ENDLESS, ids=str)
def test_engines_that_never_drain_are_planned_at_the_price_of_their_plan(
    lengths: tuple[int, int, float, float, int, int], mode: ExecutionMode
) -> None:
    facts = grpo(long_tails(*lengths), nodes=2)
    result = find_plan(SearchRequest(facts, runners_up=False, modes=(mode,)))
    assert check_plan(result.plan, facts) == []
    assert simulate(result.plan, facts) == result.timeline
