"""Protects what the words of an RL row are taken to mean of its engines: their facts and how steps are launched."""

import pytest

from benchmarks.validation.rl_engines import generation_engine, training_engine
from benchmarks.validation.rl_work import given_facts
from profiles.engine_facts import GenerationEngine
from tests.builders import RL_CELLS


def engine_of(**changes: str) -> GenerationEngine:
    return given_facts(RL_CELLS | changes, []).generation


@pytest.mark.parametrize(
    ("system", "words", "engine"),
    [
        ("NeMo-RL v0.5.0", "Megatron-Core", "megatron-core@0.16"),
        ("NeMo-RL v0.4.0", "Megatron-Core", "megatron-core@0.14"),
        ("NeMo RL 0.3", "Megatron-Core", "megatron-core@0.14"),
        ("verl", "mcore", "megatron-core@0.16"),
        ("verl", "FSDP", "fsdp@2.6"),
        ("verl", "FSDP2", "fsdp@2.13"),
        ("NeMo-RL", "DTensor", "fsdp@2.13"),
        ("AReaL", "FSDP", "fsdp@2.13"),
        ("OpenRLHF", "DeepSpeed ZeRO-3", "deepspeed@0.19"),
        ("verl", "VeOmni", "fsdp@2.13"),
    ],
)
def test_training_engines(system, words, engine):
    assert training_engine({"system": system, "train_backend": words}) == engine


@pytest.mark.parametrize(
    ("words", "family"),
    [
        ("vLLM", "vllm"),
        ("vllm 0.8.5", "vllm"),
        ("SGLang 0.5", "sglang"),
        ("TensorRT-LLM 1.3.0rc4", "tensorrt-llm"),
        ("TRT-LLM", "tensorrt-llm"),
    ],
)
def test_generation_engines(words, family):
    assert generation_engine({"gen_backend": words}).partition("@")[0] == family


@pytest.mark.parametrize(
    ("changes", "eager"),
    [
        ({"system": "verl", "measured_date": "2025-03"}, True),
        ({"system": "verl", "measured_date": "2025-03", "notes": "enforce_eager=False"}, False),
        ({"system": "verl", "measured_date": "2026-01"}, False),
        ({"notes": "vLLM enforce_eager=true in the script"}, True),
        ({"measured_date": "2025-03"}, False),
    ],
)
def test_decode_steps_are_launched_as_the_row_or_its_time_says(changes, eager):
    engine = engine_of(**changes)
    assert (engine.launch_s_per_layer > 0, engine.cuda_graphs) == (eager, not eager)


def test_an_engine_without_a_kernel_of_its_own_reduces_by_nccl():
    assert engine_of().custom_all_reduce
    assert not engine_of(notes="Launcher disables vLLM custom all-reduce").custom_all_reduce
