"""Protects the KV budget: one number for search, plan and price, never short of the longest sequence."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.models.catalogue import load_model
from profiles.workload import LengthDistribution
from simulator.cost import engine_memory, generate, kv_budget
from simulator.cost.kv_budget import kv_budget_bytes, longest_bytes, with_kv_budget
from simulator.facts import Facts
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from tests.builders import make_facts, workload

LLAMA = load_model("llama-2-7b")
TOKEN = 524_288
"""Bytes of one token: 32 layers x (keys and values) x 4096 x 2 bytes."""


def engines(dp: int = 1, tp: int = 1, slots: int = 8, pp: int = 1, copies: int = 1) -> GenerationLayouts:
    dp_, tp_, pp_, slots_, copies_ = (np.asarray([x]) for x in (dp, tp, pp, slots, copies))
    return GenerationLayouts(dp_, tp_, pp_, slots_, attention_dp=copies_)


def facts_of(response: int | LengthDistribution, samples: int = 64) -> Facts:
    return make_facts("grpo", work=workload(samples, 512, response, minibatches=1), generation="vllm@0.32")


lengths = st.one_of(
    st.integers(16, 4096).map(LengthDistribution.fixed),
    st.builds(
        lambda most, share: LengthDistribution("lognormal", most * share, most),
        st.integers(64, 32768),
        st.floats(0.02, 0.6),
    ),
)
schedules = st.sampled_from([None, 1, 2, 5])


@settings(max_examples=60)
@given(
    response=lengths,
    samples=st.integers(1, 3000),
    dp=st.integers(1, 8),
    slots=st.integers(1, 512),
    tp=st.sampled_from([1, 4]),
    pp=st.sampled_from([1, 2]),
    steps=schedules,
)
def test_nothing_waits_in_the_budget_and_the_longest_sequence_has_room(
    response: LengthDistribution, samples: int, dp: int, slots: int, tp: int, pp: int, steps: int | None
) -> None:
    """The price in the stated budget is to the bit the price of an engine that has all the cache it can use."""
    facts, free = facts_of(response, samples), engines(min(dp, samples), tp, slots, pp)
    stated = with_kv_budget(facts, LLAMA, free, steps)
    assert stated.kv_cache_bytes[0] >= longest_bytes(facts, LLAMA, free)[0]
    assert stated.record(0).kv_cache_bytes == stated.kv_cache_bytes[0]

    def price(layouts: GenerationLayouts) -> float:
        if steps is None:
            return float(generate.generation_cost(facts, LLAMA, layouts).time.s[0])
        return float(generate.steady_generation_cost(facts, LLAMA, layouts, steps_in_flight=steps).time.s[0])

    assert price(stated) == price(free)


def test_few_short_sequences_leave_room_for_the_longest() -> None:
    """Two responses of 1,000 tokens on the mean, and one may have 16,384."""
    facts = facts_of(LengthDistribution("lognormal", 1000.0, 16384), 2)
    assert kv_budget_bytes(facts, LLAMA, engines(slots=1)).tolist() == [(512 + 16384) * TOKEN]


def test_engines_that_never_drain_hold_as_many_iterations_as_are_in_flight() -> None:
    facts = facts_of(1024)
    one, three = (kv_budget_bytes(facts, LLAMA, engines(slots=512), n).tolist() for n in (1, 3))
    assert one == [64 * 1536 * TOKEN]
    assert three == [3 * 64 * 1536 * TOKEN]
    assert kv_budget_bytes(facts, LLAMA, engines(slots=512)).tolist() == one, "and a drained one holds one"


def test_a_steady_engine_needs_more_than_a_drained_one_where_lengths_differ() -> None:
    """Those that run are longer than those that come, and no tail of few is left over."""
    facts = facts_of(LengthDistribution("lognormal", 1000.0, 8192), 256)
    drained, steady = (kv_budget_bytes(facts, LLAMA, engines(dp=4, slots=64), n)[0] for n in (None, 1))
    assert steady > 1.2 * drained


def test_copies_of_the_attention_share_the_sequences_and_each_holds_the_longest() -> None:
    """Four copies of two GPUs: a GPU has half of the heads of a quarter of the sequences."""
    facts = facts_of(1024)
    whole, copies = (kv_budget_bytes(facts, LLAMA, engines(tp=8, slots=64, copies=n))[0] for n in (1, 4))
    assert whole == 64 * 1536 * TOKEN / 8
    assert copies == (64 / 4) * 1536 * TOKEN / 2 == whole
    alone = [kv_budget_bytes(facts, LLAMA, engines(tp=8, slots=1, copies=n))[0] for n in (1, 4)]
    assert alone == [1536 * TOKEN / 8, 1536 * TOKEN / 2]


def test_a_latent_that_no_gpu_splits_is_shared_out_by_copies() -> None:
    """Multi-head latent attention keeps one latent on every GPU of a copy."""
    shape = load_model("deepseek-v2-lite")
    facts = make_facts("grpo", "deepseek-v2-lite", work=workload(64, minibatches=1), generation="vllm@0.32")
    whole, copies = (kv_budget_bytes(facts, shape, engines(tp=8, slots=64, copies=n))[0] for n in (1, 8))
    assert whole == 8 * copies


def test_a_budget_that_is_stated_stays() -> None:
    facts = facts_of(1024)
    both = GenerationLayouts(*(np.asarray([x, x]) for x in (1, 1, 1, 8)), kv_cache_bytes=np.asarray([0, 7]))
    given_to_both = kv_budget.stated_bytes(facts, LLAMA, both)
    assert given_to_both.tolist() == [8 * 1536 * TOKEN, 7]


def test_the_fullest_replica_counts() -> None:
    facts = make_facts(work=workload(100, minibatches=1))
    assert kv_budget.sequences_per_replica(facts, engines(dp=8)).tolist() == [13]


def test_a_plan_with_less_than_its_budget_is_slower() -> None:
    facts = facts_of(LengthDistribution("lognormal", 1000.0, 8192), 512)
    stated = with_kv_budget(facts, LLAMA, engines(dp=2, slots=256), 1)
    times = [
        generate.steady_generation_cost(facts, LLAMA, x).time.s[0]
        for x in (stated, replace(stated, kv_cache_bytes=stated.kv_cache_bytes // 4))
    ]
    assert times[1] > 1.1 * times[0] > 0
    assert times[0] == pytest.approx(generate.steady_generation_cost(facts, LLAMA, engines(dp=2, slots=256)).time.s[0])


def test_a_budget_holds_the_states_of_linear_layers() -> None:
    shape = load_model("qwen3-next-80b-a3b-instruct")
    facts = make_facts("grpo", "qwen3-next-80b-a3b-instruct", device="h100-80gb-sxm", generation="vllm@0.32")
    layouts = GenerationLayouts.of([GenerationLayout(dp=1, tp=8, max_num_seqs=64, kv_cache_bytes=0)])
    state = kv_budget.state_bytes(facts, shape, layouts)[0]
    assert state == 64 * engine_memory.state_bytes_per_sequence(shape, np.asarray([8]), np.asarray([1]))[0] > 64e6
    tokens = kv_budget.bytes_of_tokens(facts, shape, layouts, kv_budget.drained_peak_tokens(facts, layouts))[0]
    assert kv_budget_bytes(facts, shape, layouts)[0] == pytest.approx(tokens + state, abs=1)


def test_layers_with_a_window_keep_its_tokens_alone() -> None:
    """Of Gemma-3's 62 layers 52 keep 1,024 tokens of 9,000: a budget of all tokens in all of them was five times it."""
    shape = load_model("gemma-3-27b-it")
    work = workload(64, 1000, 8000, minibatches=1)
    facts = make_facts("grpo", "gemma-3-27b-it", device="h200-sxm", generation="vllm@0.32", work=work)
    layouts = GenerationLayouts.of([GenerationLayout(dp=1, tp=4, max_num_seqs=64, kv_cache_bytes=0)])
    layer = 2 * 128 * 4 * 2  # keys and values of 4 heads of 128 on each GPU, in 16 bits
    most = 64 * layer * (10 * 9000 + 52 * 1024)
    assert 0.9 * most < kv_budget_bytes(facts, shape, layouts)[0] <= most
    kept = replace(facts, generation=replace(facts.generation, window_frees_cache=False))
    assert kv_budget_bytes(kept, shape, layouts)[0] > 3.5 * most
    short = replace(facts, workload=workload(64, 256, 512, minibatches=1))
    assert kv_budget.state_bytes(short, shape, layouts)[0] == 0, "no sequence is longer than the window"
