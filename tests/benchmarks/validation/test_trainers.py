"""Protects what the words of a training row are taken to mean: its engine, how it is built, its number format."""

import pytest

from benchmarks.validation.names import NotPredicted
from benchmarks.validation.trainers import (
    UNKNOWN,
    bridge_version,
    lora_rank,
    recompute_layers,
    recompute_of,
    trainer_of,
    training_dtype,
)


@pytest.mark.parametrize(
    ("system", "task", "settings", "expected"),
    [
        ("Megatron-Bridge", "pretrain", "", ("megatron-bridge@0.4", "parallel", "fused", "newest", False, 1)),
        ("Megatron-LM README", "pretrain", "", ("megatron-bridge@0.4", "parallel", "fused", "newest", True, 1)),
        ("NeMo 2", "pretrain", "", ("megatron-bridge@0.4", "parallel", "fused", "newest", False, 1)),
        ("torchtitan", "pretrain", "FSDP", ("torchtitan@0.2", "parallel", "fused", "flash-2", False, 3)),
        ("torchtitan", "pretrain", "TP 8, async TP", ("torchtitan@0.2", "parallel", "fused", "flash-2", True, 3)),
        ("prime-rl", "RL trainer step full", "flash_attention_3", ("fsdp@2.13", "fp32", "fused", "newest", False, 3)),
        ("prime-rl", "SFT full", "flash_attention_2", ("fsdp@2.13", "unfused", "fused", "flash-2", False, 3)),
        ("verl FSDP", "RL trainer step", "", ("fsdp@2.13", "parallel", "eager", "newest", False, 3)),
        ("NeMo Automodel", "SFT", "", ("fsdp@2.13", "parallel", "eager", "newest", False, 3)),
        ("torchtune 0.6", "SFT", "torch.compile", ("fsdp@2.13", "parallel", "fused", "newest", False, 3)),
        ("DeepSpeed ZeRO-2", "SFT", "", ("deepspeed@0.19", "parallel", "eager", "newest", False, 2)),
        ("DeepSpeed", "SFT", "", ("deepspeed@0.19", "parallel", "eager", "newest", False, 3)),
        ("NeMo-RL v0.6.0", "SFT", "", ("megatron-core@0.16", "unfused", "fused", "newest", False, 1)),
    ],
)
def test_a_trainer_is_built_as_its_words_say(system, task, settings, expected):
    trainer = trainer_of({"system": system, "task": task, "precision": "BF16", "other_settings": settings})
    built = trainer.implementation
    found = (trainer.engine, built.loss_head, built.kernels, built.attention_kernel, built.tensor_parallel_overlap)
    assert (*found, trainer.zero_stage) == expected


def test_an_unknown_trainer_is_named():
    with pytest.raises(NotPredicted, match="no trainer known for system 'MaxText'"):
        trainer_of({"system": "MaxText", "precision": "BF16"})


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ("", "bf16"),
        ("BF16", "bf16"),
        ("bfloat16", "bf16"),
        ("fp16 (half)", "bf16"),
        ("Float8 linear", "fp8"),
        ("FP8 current scaling", "fp8"),
        ("float8 rowwise", "fp8"),
        ("MXFP8", "fp8_block"),
        ("FP8 blockwise", "fp8_block"),
        ("fp8 128x128", "fp8_block"),
        ("FP8-MX", "fp8_block"),
        ("FP8-SC", "fp8_block"),  # subchannel scaling, Megatron-Bridge's name of blocks
        ("FP8-CS (FP8-MX)", "fp8"),  # what is in parentheses is the page's other recipe
        ("FP8-CS (alternative in parentheses)", "fp8"),
        ("FP8-MX (BF16)", "fp8_block"),
        ("NVFP4", "nvfp4"),
        ("NVFP4 (FP8-CS)", "nvfp4"),
        ("FP4", "nvfp4"),
    ],
)
def test_number_formats(words, dtype):
    assert training_dtype(words) == dtype


@pytest.mark.parametrize("words", ["MXFP4", "int4", "-1"])
def test_a_format_without_tables_is_refused(words):
    with pytest.raises(NotPredicted, match="no training GEMM tables for precision"):
        training_dtype(words)


@pytest.mark.parametrize(
    ("task", "rank"),
    [("pretrain", 0), ("", 0), ("RL trainer step LoRA r=16 (4 slots)", 16), ("LoRA rank = 64", 64), ("SFT lora", 16)],
)
def test_ranks_of_adapters(task, rank):
    assert lora_rank(task) == rank
    assert trainer_of({"system": "prime-rl", "task": task}).implementation.lora_rank == rank


@pytest.mark.parametrize(
    ("text", "level", "assumes"),
    [
        ("", "none", True),
        ("none (recipe: recompute_granularity None)", "none", False),
        ("off", "none", False),
        ("false", "none", False),
        ("selective (per op)", "selective", False),
        ("['mla_up_proj', 'moe_act']", "selective", False),
        ("core_attn", "selective", False),
        ("full (mlp included)", "full", False),
        ("full", "full", False),
        ("full (gradient checkpointing)", "full", False),
        ("activation offload to CPU", "full", False),
    ],
)
def test_recomputation(text, level, assumes):
    found, assumption = recompute_of(text)
    assert found == level
    assert bool(assumption) is assumes


@pytest.mark.parametrize(
    ("text", "layers"),
    [("full, 5 layers", 5), ("full, uniform, 1 layer", None), ("full", None), ("none", None), ("", None)],
)
def test_layers_that_are_recomputed(text, layers):
    assert recompute_layers(text) == layers


def test_what_a_row_of_adapters_says():
    """Adapters of NeMo's recipes are on queries, keys and values alone; prime-rl holds one set for each run."""
    nemo = trainer_of({"system": "NeMo 24.07", "task": "lora", "precision": "FP8"}).implementation
    prime = trainer_of({"system": "prime-rl", "task": "RL trainer step LoRA r=16 (4 concurrent runs slots)"})
    assert (nemo.lora_rank, nemo.lora_targets, nemo.lora_adapters) == (16, ("qkv",), 1)
    assert (len(prime.implementation.lora_targets), prime.implementation.lora_adapters) == (4, 4)


def test_a_preset_that_was_read_and_names_no_dispatcher_exchanges_by_nccl():
    row = {"system": "Megatron-Bridge v0.4.0", "model": "openai/gpt-oss-120b", "gpu_kind": "H100", "precision": "BF16"}
    read = row | {"config_basis": "table + performance preset X"}
    assert trainer_of(row).implementation.expert_dispatch == "hybrid"
    assert trainer_of(read).implementation.expert_dispatch == "all-to-all"


def test_products_scaled_by_row_are_taken_to_gain_nothing_in_torch():
    built = trainer_of({"system": "torchtitan", "precision": "float8 rowwise", "other_settings": "async TP"})
    assert (built.implementation.training_dtype, built.implementation.tensor_parallel_overlap) == ("bf16", False)


@pytest.mark.parametrize(
    ("system", "source", "version"),
    [
        ("Megatron-Bridge v0.1.0rc4", "", (0, 1)),
        ("Megatron-Bridge v0.5.1", "Megatron-Bridge performance summary, container 26.06.01", (0, 5)),
        ("Megatron-Bridge", "Megatron-Bridge performance summary, container 25.11", (0, 2)),
        ("Megatron-Bridge, container nemo:26.08", "", (0, 6)),
        ("Megatron-Bridge", "", UNKNOWN),
        ("NeMo 25.07", "", (0, 0)),
        ("NeMo 26.04", "", (0, 4)),
        ("NeMo Framework 25.11", "", (0, 2)),
        ("NeMo 2", "", (0, 0)),
        ("Megatron-LM core_r0.12.0", "", (0, 0)),
    ],
)
def test_a_container_is_as_old_as_its_month_says(system, source, version):
    """NeMo 25.07 once passed for the newest recipes, which overlap the exchange of experts: a third too fast."""
    assert bridge_version({"system": system, "source": source}) == version


def test_recipes_before_0_5_do_not_overlap_the_exchange_of_experts():
    row = {"model": "Mixtral-8x7B", "gpu_kind": "B200", "precision": "FP8"}
    overlap = {
        s: trainer_of(row | {"system": s}).implementation.expert_overlap
        for s in ("NeMo 25.07", "Megatron-Bridge v0.5.0")
    }
    assert overlap == {"NeMo 25.07": False, "Megatron-Bridge v0.5.0": True}


@pytest.mark.parametrize(
    ("basis", "settings", "captured"),
    [
        ("table", "", ("iteration",)),  # Blackwell's recipes capture whole iterations
        ("table + performance preset X at v0.3.0", "", ()),  # it was read, and sets nothing
        ("table + performance preset X at v0.3.0", "cuda_graph_scope=['attn', 'moe_router']", ("attention", "router")),
        ("table", "cuda_graph_impl=none", ()),
    ],
)
def test_graphs_are_those_of_the_preset_where_it_was_read(basis, settings, captured):
    row = {"system": "Megatron-Bridge v0.3.0", "gpu_kind": "GB200", "model": "Qwen3-30B-A3B", "precision": "MXFP8"}
    built = trainer_of(row | {"config_basis": basis, "other_settings": settings}).implementation
    assert built.captured == captured
