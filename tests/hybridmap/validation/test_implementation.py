"""Protects what ``validate`` says of a run that is built otherwise than it was priced."""

from dataclasses import replace
from pathlib import Path

import pytest

from executor.device_time import kernels_into
from hybridmap.job.load import load_job
from hybridmap.validation.implementation import compare_builds
from profiles.store import load_device

ROOT = Path(__file__).parents[3]
ENGINES = {"training": "megatron-core", "generation": "vllm"}
HOPPER = {"void flash::FlashAttnFwdSm90<bf16>", "nvjet_hsh_128x256", "transformer_engine::normalization::rmsnorm_fwd"}


@pytest.fixture(scope="module")
def facts():
    return load_job(ROOT / "examples" / "grpo-qwen2.5-7b-8xh100.yaml").facts()


def differing(facts, engines, kernels, generating=("cudaGraphLaunch",), dtype="bf16"):
    ran = {"update_actor": dict.fromkeys(kernels, 1e-3), "generate_sequences": dict.fromkeys(generating, 1e-3)}
    return {b.what: (b.priced, b.ran) for b in compare_builds(facts, engines, dtype, ran) if not b.is_same}


def test_what_ran_as_priced_does_not_differ(facts):
    assert differing(facts, ENGINES, HOPPER | {"_VocabParallelCrossEntropy"}) == {}


def test_each_difference_is_named_by_the_kernel_that_shows_it(facts):
    slow = {"aten::rsqrt", "aten::_log_softmax", "flash_fwd_splitkv_kernel", "aten::mm"}
    found = differing(facts, {**ENGINES, "training": "fsdp", "critic": "torch-native"}, slow, ("aten::mm",), "fp32")
    assert found == {
        "training engine": ("megatron-core", "fsdp"),
        "critic engine": ("megatron-core", "torch-native"),
        "training_dtype": ("bf16", "fp32"),
        "kernels": ("fused", "eager"),
        "loss_head": ("parallel", "unfused"),
        "attention_kernel": ("newest", "flash-2"),
        "generation in CUDA graphs": ("True", "False"),
    }


def test_a_mixture_without_grouped_products_differs(facts):
    job = load_job(ROOT / "examples" / "grpo-qwen3-30b-a3b-32xh100.yaml").facts()
    assert differing(job, ENGINES, HOPPER)["grouped_experts"] == ("True", "False")
    assert "grouped_experts" not in differing(job, ENGINES, HOPPER | {"aten::_grouped_mm"})


def test_an_all_reduce_by_nccl_is_no_kernel_of_the_engine(facts):
    """Our ranks see one GPU each, where vLLM's own kernel, which is priced, finds no neighbour."""
    what = "all-reduce of generation"
    graphed = ("cudaGraphLaunch", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert differing(facts, ENGINES, HOPPER, graphed)[what] == ("own", "nccl")
    own = ("cudaGraphLaunch", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)")
    assert what not in differing(facts, ENGINES, HOPPER, own)


def test_flash_attention_2_is_the_newest_where_a_device_has_no_later_one(facts):
    older = replace(facts, device=load_device("a100-80gb-sxm"))
    assert "attention_kernel" not in differing(older, ENGINES, {"flash_fwd_kernel"})


def test_a_trainers_own_kernels_are_told_apart(facts):
    """What the torch-native trainer runs on this machine: eager norms, log-softmax in steps, torch's own attention."""
    torch = pytest.importorskip("torch")
    from executor.engines.attention import packed_attention
    from executor.engines.native.decoder import rms_norm

    x, found = torch.randn(8, 4, 8, requires_grad=True), {}
    with kernels_into(found):
        y = packed_attention(x, x, x, (5, 3))
        rms_norm(y.flatten(1), torch.ones(32), 1e-6).log_softmax(-1).sum().backward()
    assert found and all(seconds >= 0 for seconds in found.values())
    told = differing(facts, ENGINES, set(found))
    assert told["kernels"] == ("fused", "eager") and told["loss_head"] == ("parallel", "unfused")
    assert "attention_kernel" not in told
