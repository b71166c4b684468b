"""Protects sparse attention: what an indexer reads, and that queries read no more than it picks."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost import compute, engine_attention, engine_memory, gemm_sizes, gemms, mixers
from simulator.cost.indexer import as_shorter_prompts, index_scores
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from tests.builders import make_facts

M3 = load_model("minimax-m3")
assert M3.sparse is not None
FACTS = make_facts("grpo", device="h100-80gb-sxm", generation="vllm@0.32")
EIGHT = GenerationLayouts.of([GenerationLayout(dp=1, tp=8, max_num_seqs=64, kv_cache_bytes=0)])
ONE = np.asarray([[1.0]])


def test_prompts_that_read_all_of_theirs_stay_as_they_are() -> None:
    prompts, length = as_shorter_prompts(ONE * 3, ONE * 1000, 2048)
    assert (prompts[0, 0], length[0, 0]) == (3.0, 1000.0)
    prompts, length = as_shorter_prompts(ONE, ONE * 65_536, 2048)
    assert prompts * length == pytest.approx(ONE * 65_536), "as many tokens"
    assert 0.9 * 2048 < length[0, 0] / 2 < 2048, "each reads the mean of a shorter prompt: half of it"


def test_blocks_leave_few_scores_and_a_prompts_queries_share_keys() -> None:
    pairs = ONE * 1e9
    tokens, blocks, prompt = (
        index_scores(FACTS, replace(M3.sparse, block=block), pairs, whole).s[0, 0]
        for block, whole in ((1, True), (128, False), (128, True))
    )
    assert prompt < 0.1 * blocks and prompt < 0.1 * tokens


def test_decode_reads_what_is_picked() -> None:
    """Beyond the picked tokens a step grows by the indexer's keys and by three dense layers, not by the cache."""
    dense = replace(M3, sparse=None)
    near, far, all_of_it = (
        engine_attention.attention_of_decode(FACTS, shape, EIGHT, ONE * 64, ONE * length, "bf16").s[0, 0]
        for shape, length in ((M3, 4096.0), (M3, 65_536.0), (dense, 65_536.0))
    )
    assert near < far < 0.8 * all_of_it


@pytest.mark.parametrize(
    ("device", "engine", "module_s"),
    [
        ("h100-80gb-sxm", "vllm@0.32", 1.705e-3),
        ("h100-80gb-sxm", "sglang@0.5", 2.300e-3),
        ("b200-sxm", "vllm@0.32", 0.649e-3),
        ("b200-sxm", "sglang@0.5", 1.790e-3),
    ],
)
def test_prompts_take_what_the_engines_modules_took(device, engine, module_s) -> None:
    """One prompt of 8,192 tokens through a layer of 16 heads, beside aiconfigurator-core 0.12.0's MiniMax-M3 module."""
    facts = make_facts("grpo", device=device, generation=engine).of_engine
    four = GenerationLayouts.of([GenerationLayout(dp=1, tp=4, max_num_seqs=64, kv_cache_bytes=0)])
    picked, ranks = replace(M3, sparse=replace(M3.sparse, num_layers=M3.num_layers)), np.asarray([[4]])
    attention = engine_attention.attention_of_prefill(facts, picked, four, ONE, ONE * 8192, "bf16").s[0, 0]
    products = sum(
        gemms.run_gemms(facts, ONE * 8192, sizes, "bf16").s[0, 0] * part
        for sizes, part in gemm_sizes.attention_products(picked, ranks)
    )
    assert attention + products == pytest.approx(module_s, rel=0.3)


def test_training_attends_to_what_is_picked() -> None:
    rank = np.asarray([1], dtype=np.int64)
    batch = compute.Batch(np.asarray([65_536.0]), np.asarray([1.0]), np.asarray([65_536.0]))
    picked, everything = (
        mixers.attention_forward(FACTS, shape, batch, 8 * rank, rank).s[0] for shape in (M3, replace(M3, sparse=None))
    )
    assert 0.05 < picked / everything < 0.6


def test_heads_of_each_kind_of_layer_have_their_own_cache() -> None:
    """Gemma-4 over eight ranks: two of sixteen heads of 256 under a window, one of four of 512 without."""
    gemma, tp = load_model("gemma-4-31b-it"), np.asarray([8])
    held = engine_memory.kv_bytes_per_token(gemma, tp, np.asarray([1]))
    assert held == pytest.approx(2 * (50 * 2 * 256 + 10 * 512) * 2.0)
    assert engine_memory.windowed_share(gemma) == pytest.approx(50 * 4096 / (50 * 4096 + 10 * 2048))
    short, long = (
        engine_attention.attention_of_decode(FACTS, gemma, EIGHT, ONE * 64, ONE * n, "bf16").s[0, 0]
        for n in (2048.0, 65_536.0)
    )
    assert short < long < 32 * short, "windows do not grow"
