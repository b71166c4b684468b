"""Protects what a published row says of its engine's launch: flags of the sweeps that deployed it, by release."""

from typing import Any

import pytest

from benchmarks.validation.sweeps import launched_engine

OWN_SWEEP = "aiconfigurator silicon_sample.csv: NVIDIA internal sweep"


def launched(backend: str, release: str, source: str = OWN_SWEEP, **cells: Any) -> Any:
    row = {"backend": backend, "backend_version": release, "source": source, "input_len": 1000, "max_batch": 64}
    return launched_engine({**row, **cells})


@pytest.mark.parametrize(("backend", "release"), [("TensorRT-LLM", "1.0.0rc3"), ("vLLM", "0.12.0")])
def test_generated_deployments_have_a_budget_of_their_sequences_and_one_prompt(backend: str, release: str) -> None:
    assert launched(backend, release).max_batched_tokens == 64 + 1000 + 1500
    assert launched(backend, release, input_len=4000, max_batch=8).max_batched_tokens == 8 + 4000 + 1500
    assert launched(backend, release, source="another benchmark").max_batched_tokens == 8192
    assert launched(backend, release, max_batch=None).max_batched_tokens == 8192


@pytest.mark.parametrize(
    ("release", "scheduler"),
    [("0.5.1.post1", "prefill-first"), ("0.5.4", "prefill-first"), ("0.5.6.post2", "mixed"), ("0.5.8.post1", "mixed")],
)
def test_sglang_mixes_prompts_and_decodes_where_the_generator_says_so(release: str, scheduler: str) -> None:
    assert launched("SGLang", release).scheduler == scheduler
    assert launched("SGLang", release, source="InferenceX public benchmark dump").scheduler == "prefill-first"


@pytest.mark.parametrize(
    ("backend", "family"),
    [
        ("vLLM (ROCm)", "vllm"),
        ("vLLM V1", "vllm"),
        ("TensorRT-LLM (PyTorch)", "tensorrt-llm"),
        ("sglang-router", "sglang"),
    ],
)
def test_an_engine_is_known_however_it_is_written(backend: str, family: str) -> None:
    assert launched(backend, "").family == family


def test_the_public_sweep_gives_mxfp4_experts_narrow_activations() -> None:
    assert launched("vLLM", "0.18.0", source="InferenceX public benchmark dump").mxfp8_activations
    assert not launched("vLLM", "0.18.0", source="another benchmark").mxfp8_activations
    assert launched("SGLang", "0.5.9", source="another benchmark").mxfp8_activations
