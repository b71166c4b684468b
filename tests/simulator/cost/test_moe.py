"""Protects mixture-of-experts layers: how many rows a GPU's experts see, and that experts cost what their parts do."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.errors import NoBasisError
from profiles.models.catalogue import load_model
from profiles.records import Priced
from simulator.cost import expert_exchange, moe
from simulator.cost.compute import Batch
from simulator.cost.engine_layer import copy_work, layer_work
from simulator.cost.gemms import run_gemms
from simulator.facts import Implementation
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from tests.builders import MOE, TINY, make_facts

SHAPE = load_model(MOE)  # 60 experts of 1408, 4 per token, shared 5632
ONE = np.asarray([1], dtype=np.int64)
TOKENS = np.asarray([4096.0])


def batch(tokens: float = 4096.0) -> Batch:
    return Batch(np.asarray([tokens]), np.asarray([tokens / 1024]), np.asarray([1024.0]))


def test_rows_of_a_gpus_experts() -> None:
    """Without expert parallelism every rank works on all copies of its slice; with it on its share of the tokens."""
    assert moe.routed_rows(SHAPE, TOKENS, 2 * ONE, ONE).tolist() == [4096 * 4]
    assert moe.routed_rows(SHAPE, TOKENS, 2 * ONE, 4 * ONE).tolist() == [4096 * 4 / 2]


def test_a_dense_model_has_no_experts() -> None:
    with pytest.raises(NoBasisError, match="tiny has no experts"):
        moe.routed_rows(TINY, TOKENS, ONE, ONE)


def test_experts_split_over_ranks_are_faster() -> None:
    facts = make_facts(model=MOE)
    whole = moe.experts_training(facts, SHAPE, batch(), ONE, ONE, ONE)
    sliced = moe.experts_training(facts, SHAPE, batch(), 2 * ONE, ONE, ONE)
    for one, half in zip(whole, sliced, strict=True):
        assert 0 < half.s[0] < one.s[0]
    assert whole[1].s[0] > 1.5 * whole[0].s[0], "backward has two GEMMs for each of forward"


def test_expert_parallelism_keeps_each_gpus_work_but_makes_larger_gemms() -> None:
    """Equal rows per GPU in fewer, fuller experts: never slower."""
    facts = make_facts(model=MOE)
    alone = moe.experts_training(facts, SHAPE, batch(), ONE, ONE, ONE)[0].s[0]
    spread = moe.experts_training(facts, SHAPE, batch(), ONE, ONE, 4 * ONE)[0].s[0]
    assert spread <= alone


def test_activations_that_are_no_single_kernel_are_computed_again_by_selective_recomputation() -> None:
    facts = replace(make_facts(model=MOE), implementation=Implementation(expert_activation="unfused"))
    assert moe.unfused_activation(make_facts(model=MOE), SHAPE, TOKENS, ONE, ONE).s.tolist() == [0.0]
    expected = facts.device.memory_bound(4096 * 4 * 1408 * moe.UNFUSED_ACTIVATION_BYTES, 12)
    assert float(moe.unfused_activation(facts, SHAPE, TOKENS, ONE, ONE).s[0]) == pytest.approx(float(expected.s))


def test_decode_experts_grow_with_the_batch_and_shrink_with_tensor_parallelism() -> None:
    facts = make_facts(model=MOE)
    times = [
        moe.experts_decode(facts, SHAPE, np.asarray([float(n)]), ONE, ONE, "bf16", "bf16").s[0] for n in (1, 64, 4096)
    ]
    assert times == sorted(times)
    assert moe.experts_decode(facts, SHAPE, TOKENS, 4 * ONE, ONE, "bf16", "bf16").s[0] < times[-1]


def test_fp8_experts_are_never_slower_than_block_scaled_ones() -> None:
    """The table's per-tensor kernel was left untuned at some shapes; an engine takes the better one."""
    facts = make_facts(device="h100-80gb-sxm")
    shape = load_model("qwen3-235b-a22b")
    for rows in (4.0, 64.0, 1024.0):
        plain, block = (
            moe.experts_decode(facts, shape, np.asarray([rows]), ONE, 4 * ONE, t, t).s[0] for t in ("fp8", "fp8_block")
        )
        assert plain <= 1.05 * block


def test_routed_rows_pass_through_memory_as_often_as_the_engine_says() -> None:
    """A pass reads and writes a row of ``h`` bf16 values; forward and backward each make them."""
    few = make_facts(model=MOE)
    many = replace(few, training=replace(few.training, moe_row_passes=10.0))
    assert few.training.moe_row_passes == 4.5
    rows = 4096 * 4
    by_hand = [float(few.device.memory_bound(rows * SHAPE.hidden * 2 * 2 * n, 2 * n).s) for n in (4.5, 10.0)]
    costs = [moe.experts_training(facts, SHAPE, batch(), ONE, ONE, ONE) for facts in (few, many)]
    for way in (0, 1):
        assert costs[1][way].s[0] - costs[0][way].s[0] == pytest.approx(by_hand[1] - by_hand[0])


def test_routing_is_uneven_only_between_expert_parallel_ranks() -> None:
    """The fullest of four ranks works on 1.5 times its share; one rank that has all experts has all rows anyway."""
    even = make_facts(model=MOE)
    uneven = replace(even, implementation=Implementation(expert_imbalance=1.5))
    alone = [moe.experts_training(facts, SHAPE, batch(), ONE, ONE, ONE) for facts in (even, uneven)]
    assert alone[0][0].s == alone[1][0].s
    assert alone[0][1].s == alone[1][1].s
    spread = [moe.experts_training(facts, SHAPE, batch(), ONE, ONE, 4 * ONE) for facts in (even, uneven)]
    assert spread[1][0].s > spread[0][0].s
    assert spread[1][1].s > spread[0][1].s
    assert moe.routed_rows(SHAPE, TOKENS, ONE, 4 * ONE).tolist() == [4096 * 4]
    more = Batch(TOKENS * 1.5, TOKENS * 1.5 / 1024, np.asarray([1024.0]))
    assert spread[1][0].s < moe.experts_training(even, SHAPE, more, ONE, ONE, 4 * ONE)[0].s, "the rest stays even"


def test_frozen_experts_have_no_weight_gradients() -> None:
    whole = make_facts("grpo", "qwen3-30b-a3b", device="h100-80gb-sxm", training="fsdp@2.13")
    whole = replace(whole, training=replace(whole.training, adapter_ratio=1.0))
    lora, shape = replace(whole, implementation=Implementation(lora_rank=16)), load_model("qwen3-30b-a3b")
    backward = [moe.experts_training(facts, shape, batch(), ONE, ONE, ONE)[1].s[0] for facts in (whole, lora)]
    assert backward[1] < 0.9 * backward[0]


def test_experts_train_in_the_stated_number_format() -> None:
    facts = make_facts("grpo", "mixtral-8x7b-v0.1", device="h100-80gb-sxm", training="megatron-core@0.16")
    eight, shape = replace(facts, implementation=Implementation(training_dtype="fp8")), load_model("mixtral-8x7b-v0.1")
    times = [moe.experts_training(f, shape, batch(65536.0), ONE, ONE, ONE)[0].s[0] for f in (facts, eight)]
    assert times[1] < times[0]


def test_shared_experts_run_beside_the_routed_ones_in_steps_of_few_tokens() -> None:
    shape = load_model("deepseek-v3")
    base = make_facts("grpo", "qwen3-8b", device="h200-sxm", generation="vllm@0.32")
    apart = replace(base, generation=replace(base.generation, shared_experts_beside=0.0))
    tokens, ranks, groups = np.array([[16.0, 4096.0]]), np.array([[8, 8]]), np.array([[1, 1]])

    few, many = (
        moe.experts_decode(base, shape, tokens, ranks, groups, "fp8_block", "fp8_block").s[0]
        / moe.experts_decode(apart, shape, tokens, ranks, groups, "fp8_block", "fp8_block").s[0]
    )
    assert 0.7 < few < 1.0
    assert many == 1.0


def test_a_shared_expert_in_the_routed_kernel_has_its_configurations() -> None:
    """SGLang folds DeepSeek's shared expert in where experts are whole on every rank, and not those of other models."""
    facts = make_facts("grpo", "qwen3-8b", device="h200-sxm", generation="sglang@0.5").of_engine
    apart = replace(facts, generation=replace(facts.generation, tuned_experts=0.0))
    tokens, ranks, groups = np.array([[16.0, 16.0]]), np.array([[8, 8]]), np.array([[1, 8]])

    def ratios(model: str, dtype: str = "fp8_block") -> list[float]:
        shape = load_model(model)
        found = [moe.experts_decode(f, shape, tokens, ranks, groups, dtype, dtype).s[0] for f in (facts, apart)]
        return (found[0] / found[1]).tolist()

    folded, spread = ratios("deepseek-v3")
    assert folded < 0.95
    assert spread == 1.0
    assert ratios("qwen3-235b-a22b") == ratios("deepseek-v3.2") == [1.0, 1.0]
    assert ratios("deepseek-v3", "bf16") == [1.0, 1.0], "configurations are of FP8 in blocks"


SUPER = load_model("nvidia-nemotron-3-super-120b-a12b-bf16")
assert SUPER.moe is not None
WIDE = replace(SUPER, moe=replace(SUPER.moe, latent=None))
"""The same experts in the hidden width, which is four times the one that they work in."""


def test_experts_of_a_narrower_width_send_less_and_compute_less() -> None:
    """The exchange carries the narrow rows alone; two small products come on top of the experts' smaller ones."""
    facts = make_facts(model=MOE, nodes=2)
    sent = [expert_exchange.dispatch_and_combine(facts, x, TOKENS, ONE, 16 * ONE).s[0] for x in (SUPER, WIDE)]
    assert 3.0 < sent[1] / sent[0] <= 4.0
    passes = [
        sum(moe.experts_training(facts, x, batch(), ONE, ONE, 16 * ONE), Priced.zero()).s[0] for x in (SUPER, WIDE)
    ]
    assert 0.2 < passes[0] / passes[1] < 0.6


@pytest.mark.parametrize("rows", [8.0, 4096.0])
def test_an_engine_projects_tokens_to_the_experts_width_and_back(rows: float) -> None:
    facts = make_facts("grpo", device="h100-80gb-sxm", generation="vllm@0.12", model=MOE)
    eight = GenerationLayouts.of([GenerationLayout(dp=1, tp=8, max_num_seqs=64, kv_cache_bytes=0)])
    tokens = np.asarray([[rows]])
    narrow, wide = (layer_work(facts, x, eight, tokens, "bf16").s[0, 0] for x in (SUPER, WIDE))
    products = run_gemms(facts, tokens, [(np.asarray([[1024.0]]), np.asarray([[4096.0]]))] * 2, "bf16").s[0, 0]
    assert products * SUPER.num_moe_layers / SUPER.num_layers < narrow < wide
    copy = [copy_work(facts, x, eight, tokens, "bf16").s[0, 0] for x in (SUPER, WIDE)]
    assert copy[0] - copy[1] == pytest.approx(products * 40 / 88, rel=0.2)
