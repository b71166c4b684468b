"""Protects the count of operators that a layer of an engine has, which its host launches one by one."""

from dataclasses import replace

import pytest

from profiles.models.catalogue import load_model
from simulator.cost.engine_launches import operators_of_layer
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from tests.builders import make_facts


def ratio(model: str, precision: str = "bf16", tp: int = 8) -> float:
    facts = make_facts("grpo", "qwen3-8b", device="h200-sxm", generation="tensorrt-llm@1.0")
    layouts = GenerationLayouts.of([GenerationLayout(dp=1, tp=tp, max_num_seqs=8, kv_cache_bytes=0)])
    return float(operators_of_layer(facts, load_model(model), layouts, precision)[0])


def test_a_dense_layer_in_sixteen_bits_is_the_unit() -> None:
    assert ratio("llama-3.1-8b") == 1.0
    assert ratio("llama-3.1-8b", tp=1) == pytest.approx(0.8)


def test_norms_of_heads_quantisation_experts_and_latent_attention_are_operators_of_their_own() -> None:
    assert ratio("qwen3-8b") == pytest.approx(1.2)
    assert ratio("qwen3-8b", "fp8_block") == pytest.approx(1.6), "four products whose inputs are quantised apart"
    assert ratio("llama-3.1-8b", "fp8") == 1.0, "fused into the norm before"
    assert ratio("deepseek-v3", "nvfp4") > ratio("qwen3-235b-a22b", "fp8_block") > ratio("qwen3-235b-a22b")


def test_layers_of_one_part_have_half_the_norms_and_collectives() -> None:
    """52 layers of Nemotron-3-Nano: 23 Mamba mixers of 7 operators, 6 attentions of 3, 23 mixtures of 3 and 4."""
    assert ratio("nvidia-nemotron-3-nano-30b-a3b-bf16") == pytest.approx((1 + 1 + (23 * 7 + 6 * 3 + 23 * 7) / 52) / 10)
    super_ = (1 + 1 + (40 * 7 + 8 * 3 + 40 * (7 + 2)) / 88) / 10
    assert ratio("nvidia-nemotron-3-super-120b-a12b-bf16") == pytest.approx(super_), "tokens projected down and up"


def test_the_host_of_an_engine_takes_as_much_longer() -> None:
    """A step of a short prompt, which waits for launches alone."""
    from simulator.serving.tabulate import tabulate

    def step(model: str) -> float:
        facts = make_facts("grpo", "qwen3-8b", device="h200-sxm", generation="tensorrt-llm@1.0")
        facts = replace(facts, generation=replace(facts.generation, host_s_per_step=0.0, host_s_per_sequence=0.0))
        shape = load_model(model)
        layouts = GenerationLayouts.of([GenerationLayout(dp=1, tp=8, max_num_seqs=8, kv_cache_bytes=0)])
        prices = tabulate(facts, shape, layouts, "bf16", 128, 128)
        return prices.mixed_step_s(0, 0, [16], [], 1) / shape.num_layers

    assert step("qwen3-8b") / step("llama-3.1-8b") == pytest.approx(1.2)
