"""Protects the formats of a checkpoint's parts: what four bits hold, the bytes of one GPU that follow, the cache."""

import pytest

from profiles.models.catalogue import load_model
from simulator.cost.formats import Formats, formats_of, kv_dtype, weight_bytes
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from tests.builders import make_facts


def layouts(tp: int, attention_dp: int = 1) -> GenerationLayouts:
    one = GenerationLayout(dp=1, tp=tp, attention_dp=attention_dp, max_num_seqs=8, kv_cache_bytes=0)
    return GenerationLayouts.of([one])


@pytest.mark.parametrize(
    ("model", "precision", "formats"),
    [
        ("gpt-oss-120b", "mxfp4", Formats("bf16", "bf16", "bf16", "mxfp4")),
        ("kimi-k2.5", "int4", Formats("bf16", "bf16", "bf16", "int4")),
        ("deepseek-v3", "nvfp4", Formats("bf16", "bf16", "bf16", "nvfp4")),
        ("minimax-m2.5", "fp8", Formats("fp8_block", "fp8_block", "fp8_block", "fp8_block")),
        ("qwen3-32b", "nvfp4", Formats("nvfp4", "nvfp4", "nvfp4", "nvfp4")),
        ("gpt-oss-120b", "bf16", Formats("bf16", "bf16", "bf16", "bf16")),
    ],
)
def test_formats_by_part(model: str, precision: str, formats: Formats) -> None:
    assert formats_of(load_model(model), precision) == formats


def test_weights_of_one_gpu() -> None:
    dense = load_model("qwen3-32b")
    assert weight_bytes(dense, layouts(2), "bf16") == pytest.approx(dense.num_params)
    oss = load_model("gpt-oss-120b")
    assert 60e9 < weight_bytes(oss, layouts(1), "mxfp4") < 70e9  # the checkpoint's files hold 65 GB
    kimi = load_model("kimi-k2.5")
    assert 8 * 70e9 < weight_bytes(kimi, layouts(1), "int4") < 8 * 75e9  # 595 GB
    assert weight_bytes(oss, layouts(4, 4), "mxfp4") > weight_bytes(oss, layouts(4), "mxfp4")  # attention is copied


def test_fp8_cache_follows_per_tensor_checkpoints_where_the_engine_does() -> None:
    facts = make_facts("grpo", device="h100-80gb-sxm", generation="tensorrt-llm@1.0")
    assert kv_dtype(facts, "fp8") == "fp8"
    assert kv_dtype(facts, "fp8_block") == kv_dtype(facts, "bf16") == "bf16"
    assert kv_dtype(make_facts("grpo", device="h100-80gb-sxm", generation="vllm@0.12"), "fp8") == "bf16"
