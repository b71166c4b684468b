"""Protects the reading of strangers' words: the right model and part, or a refusal, and never a near miss."""

import math

import pandas as pd
import pytest

from benchmarks.validation.devices import DERIVED, device_profile
from benchmarks.validation.names import (
    WITHOUT_TABLES,
    NotPredicted,
    integer,
    model_kind,
    number,
    per_rank,
    published_device,
    published_model,
    published_models,
    text_of,
)
from benchmarks.validation.tables import KINDS
from profiles.models.catalogue import hf_id, load_model, model_names
from profiles.store import device_names, load_device
from tests.benchmarks.validation.conftest import PUBLISHED


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("LLAMA3.1 70B", "llama-3.1-70b"),
        ("Llama-3 405B", "llama-3.1-405b"),
        ("Llama 7B", "llama-2-7b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("qwen3_30b_a3b", "qwen3-30b-a3b"),
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("PrimeIntellect/INTELLECT-3", "glm-4.5-air"),
        ("EleutherAI/gpt-j-6b", "gpt-j-6b"),
        ("nvidia/Nemotron-H-56B-Base-8K", "nemotron-h-56b"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "kimi-linear-48b-a3b-instruct"),
        ("google/gemma-4-31B-it", "gemma-4-31b-it"),
        ("MiniMaxAI/MiniMax-M3", "minimax-m3"),
        ("nvidia/MiniMax-M3-NVFP4", "minimax-m3"),
        ("Nemotron 3 Super", "nvidia-nemotron-3-super-120b-a12b-bf16"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvidia-nemotron-3-super-120b-a12b-bf16"),
        ("Nemotron 3 Nano", "nvidia-nemotron-3-nano-30b-a3b-bf16"),
        ("NVIDIA Nemotron 3 Nano 30B-A3B", "nvidia-nemotron-3-nano-30b-a3b-bf16"),
        ("nvidia/Nemotron-Nano-12B-v2", "nvidia-nemotron-nano-12b-v2"),
        ("Llama4-Scout", "llama-4-scout-17b-16e-instruct"),
        ("Mixtral-8x22B", "mixtral-8x22b-v0.1"),
        ("MiniMaxAI/MiniMax-M2", "minimax-m2.5"),
        ("MiniMaxAI/MiniMax-M2.1", "minimax-m2.5"),
        ("zai-org/GLM-4.7-FP8", "glm-4.5"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-24b-instruct-2501"),
        ("MOE_Mixtral8x7B", "mixtral-8x7b-v0.1"),
    ],
)
def test_a_model_is_known_however_it_is_written(text, name):
    assert published_model(text).name == name


@pytest.mark.parametrize("name", model_names())
def test_the_catalogues_own_names_and_ids_mean_themselves(name):
    shape = load_model(name)
    if shape.sparse:
        with pytest.raises(NotPredicted, match="no price yet"):
            published_model(name, trained=True)
    assert published_model(name) == shape
    assert published_model(hf_id(name)) == shape


@pytest.mark.parametrize("text", ["foo", "", "Qwen3-9B", "Llama-3-7B", "OPT-7B", "gpt"])
def test_an_unknown_model_is_refused_by_name(text):
    with pytest.raises(NotPredicted) as caught:
        published_model(text)
    assert caught.value.reason == f"no architecture known for '{text}'"


def test_a_model_that_no_shape_can_express_is_refused_with_the_cause():
    with pytest.raises(NotPredicted, match="linear attention"):
        published_model("MiniMaxAI/MiniMax-M1-80k")


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # as their papers and model cards print them
        ("OPT-1.3b", 1.3),
        ("OPT-66B", 66),
        ("OPT-175B", 175),
        ("gpt-j-6b", 6.05),
        ("falcon-180B", 180),
        ("gpt-oss-120b", 117),
        ("gpt-oss-20b", 21),
        ("GLM-4.5-Air", 106),
        ("GLM-4.5", 355),
        ("Moonlight-16B-A3B", 16),
        ("Kimi-K2-Instruct", 1030),
        ("Nemotron-4-340B", 341),
        ("Nemotron-4-15B", 15.6),
        ("OLMoE-1B-7B", 6.9),
        ("ERNIE-4.5-21B-A3B", 21.8),
        ("Qwen3-Coder-480B-A35B-Instruct", 480),
        ("bloom-176b", 176),
        ("mistralai/Mistral-Large-Instruct-2411", 123),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", 675),
        ("CohereLabs/c4ai-command-a-03-2025", 111),
        ("allenai/Olmo-3-32B-Think", 32.2),
        ("databricks/dbrx-instruct", 132),
        ("xai-org/grok-1", 314),
        ("tencent/Hunyuan-A13B-Instruct", 80),
        ("baidu/ERNIE-4.5-300B-A47B-PT", 300),
        ("baidu/ERNIE-4.5-21B-A3B-PT", 21.8),
        ("inclusionAI/Ling-flash-2.0", 103),
        ("inclusionAI/Ring-1T", 1000),
        ("inclusionAI/Ling-mini-2.0", 16.3),
        ("XiaomiMiMo/MiMo-V2-Flash", 309),
        ("mistralai/Devstral-2-123B-Instruct-2512", 123),
        ("rednote-hilab/dots.llm1.inst", 142),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", 49.9),
        ("nvidia/Nemotron-H-56B-Base-8K", 56.3),
        ("nvidia/Nemotron-H-8B-Base-8K", 8.1),
        ("Qwen/Qwen2-57B-A14B", 57.4),
        ("Qwen/Qwen1.5-110B", 111),
        ("deepseek-ai/deepseek-llm-67b-chat", 67.4),
        ("microsoft/Phi-3-medium-4k-instruct", 14),
        ("GPT 1.7B (hidden 2048, 24 layers, 16 heads, vocabulary 131072)", 1.7),
        ("GPT 7.1B (hidden 4096, 30 layers, 32 heads, vocabulary 131,072)", 7.1),
        ("GPT 462B (hidden 18432, 112 layers, 144 heads, vocabulary 131072)", 462),
    ],
)
def test_sizes_come_out_as_published(name, billions):
    assert published_model(name).num_params / 1e9 == pytest.approx(billions, rel=0.03)


def test_roles_with_models_of_their_own():
    roles = published_models("OPT-13B actor + OPT-350M critic/reward")
    names = {role: shape.name for role, shape in roles.items()}
    assert names == {"actor": "opt-13b", "reference": "opt-13b", "critic": "opt-350m", "reward": "opt-350m"}
    assert {shape.name for shape in published_models("4 x Llama 70B").values()} == {"llama-2-70b"}
    with pytest.raises(NotPredicted, match="several models"):
        published_model("4 x Llama 70B")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100-SXM-80GB (DGX-H100, NVIDIA EOS)", "h100-80gb-sxm"),
        (" h200-SXM-141GB ", "h200-sxm"),
        ("A100-80GB", "a100-80gb-sxm"),
        ("GB200 NVL72", "gb200"),
        ("B200", "b200-sxm"),
        ("H100 (96 GB HBM2e, 500 W limit, Grand Teton)", "h100-96gb-hbm2e"),
        ("A800-80GB", "a800-80gb-sxm"),
        ("A100-40GB", "a100-40gb-sxm"),
        ("H20", "h20-96gb-sxm"),
        ("RTX A6000", "rtx-a6000"),
        ("MI300X 192GB", "mi300x-192gb"),
        ("GH200 144GB HBM3e", "gh200-144gb"),
        ("GH200-96GB", "gh200-96gb"),
        ("H100 NVL", "h100-94gb-nvl"),
        ("H100-PCIe-80GB", "h100-80gb-pcie"),
        ("H20-141GB", "h20-141gb-sxm"),
        ("MI355X", "mi355x-288gb"),
    ],
)
def test_parts(text, name):
    assert published_device(text) == name
    assert device_profile(name).name == name


@pytest.mark.parametrize("text", ["V100", "L40", "RTX 4090", "MI250X"])
def test_a_part_without_tables_is_refused(text):
    with pytest.raises(NotPredicted, match=f"no operator tables for {text}"):
        published_device(text)


@pytest.mark.parametrize("text", [None, "", "  ", float("nan"), "unknown"])
def test_no_part_at_all(text):
    with pytest.raises(NotPredicted, match="does not name the GPU"):
        published_device(text)


def test_derived_parts_are_never_faster_than_their_die():
    for name, derived in DERIVED.items():
        spec, base = device_profile(name).spec, load_device(derived.base).spec
        assert derived.base in device_names()
        if name in WITHOUT_TABLES:  # another die, not a part of that one
            continue
        assert spec.sustained("bf16") <= base.sustained("bf16") and spec.nvlink_bytes_per_s <= base.nvlink_bytes_per_s
        assert spec != base


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (" 1,024 ", 1024.0),
        ("3.5", 3.5),
        ("1 000", 1000.0),
        (7, 7.0),
        ("", None),
        (None, None),
        ("auto", None),
        (float("nan"), None),
        ("inf", None),
        ("-", None),
        ("1e3", 1000.0),
        (True, None),
        ("1 (5)", 1.0),
        ("64 (global)", 64.0),
        ("(5)", None),
        ("TP 4", 4.0),
        ("pp=8", 8.0),
        ("~800", 800.0),
        ("2,048 samples", 2048.0),
        ("41.6 GiB", 41.6),
        ("512 (samples)", 512.0),
        ("4x8", None),
        ("pp", None),
        ("ep8tp4", None),
    ],
)
def test_numbers_of_dirty_cells(cell, value):
    assert number(cell) == value


def test_whole_numbers_and_words():
    assert integer(" 8 ", 1) == 8 and integer("", 1) == 1 and integer(8.0, 1) == 8
    with pytest.raises(NotPredicted, match="'auto' is no whole number"):
        integer("auto", 1)
    for cell in ("0", -1, "1e30"):
        with pytest.raises(NotPredicted, match="out of range"):
            integer(cell, 1)
    assert text_of("  a \n b ") == "a b" and text_of(math.nan) == ""


def test_a_micro_batch_of_all_ranks_is_shared_by_them():
    assert per_rank("64 (global)", 8, 1) == 8 and per_rank("2 (global)", 8, 1) == 1
    assert per_rank("64", 8, 1) == 64 and per_rank("", 8, 3) == 3


@pytest.mark.parametrize(("kind", "file"), [("rl", "rl_steps"), ("training", "training"), ("generation", "generation")])
def test_every_model_of_the_published_tables_is_known(kind, file):
    assert kind in KINDS
    for text in pd.read_csv(PUBLISHED / f"{file}.csv")["model"].unique():
        assert {model_kind(shape) for shape in published_models(text).values()} <= {"dense", "moe"}
