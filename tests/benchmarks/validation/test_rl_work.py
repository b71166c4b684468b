"""Protects the reading of a published RL iteration as a job: what is stated is taken, what is assumed is said, and
what no default would be honest for is refused.
"""

import pytest

from benchmarks.validation.names import NotPredicted
from benchmarks.validation.rl_work import given_facts, is_separate
from tests.builders import RL_CELLS


def facts(**changes):
    return given_facts(RL_CELLS | changes, [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean_response_len": ""}, "the mean response length is not stated"),
        ({"mean_response_len": "abc"}, "mean_response_len is abc, which is no length in tokens"),
        ({"max_response_len": "", "max_seq_len": ""}, "no limit of the response length is stated"),
        ({"prompts_per_step": ""}, "prompts_per_step is not stated"),
        ({"num_gpus": ""}, "num_gpus is not stated"),
        ({"gen_backend": "Hugging Face generate"}, "no generation engine known for 'hugging face generate'"),
        ({"gen_backend": ""}, "no generation engine known for 'an unnamed engine'"),
        ({"train_backend": "JAX"}, "no training engine known for 'jax'"),
        ({"algorithm": "DPO"}, "no dataflow for algorithm 'dpo'"),
        ({"algorithm": ""}, "no dataflow for algorithm ''"),
        ({"gpu_kind": "TPU v5"}, "no operator tables for TPU v5"),
        ({"model": "Nobody/Knows-7B"}, "Nobody/Knows-7B"),
    ],
)
def test_what_cannot_be_known_is_refused_by_name(changes, words):
    with pytest.raises(NotPredicted) as error:
        facts(**changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("words", "algorithm", "roles"),
    [
        ("GRPO", "grpo", ("actor", "reference")),
        ("GSPO (async)", "grpo", ("actor", "reference")),
        ("DAPO", "dapo", ("actor",)),
        ("PPO", "ppo", ("actor", "critic", "reference", "reward")),
        ("ReMax", "remax", ("actor", "reference", "reward")),
        ("Safe-RLHF", "safe-rlhf", ("actor", "critic", "reference", "reward", "cost")),
        ("async GRPO with LoRA", "grpo", ("actor", "reference")),
        ("CISPO", "grpo", ("actor", "reference")),
        ("VAPO", "ppo", ("actor", "critic", "reference", "reward")),
        ("REINFORCE", "reinforce++", ("actor", "reference")),
    ],
)
def test_algorithms_and_their_models(words, algorithm, roles):
    passes = "policy" if algorithm == "dapo" else "policy+reference"
    found = facts(algorithm=words, logprob_passes=passes)
    assert (found.algorithm, found.dataflow.roles) == (algorithm, roles)


def test_log_prob_passes_are_those_of_the_row():
    for words, roles, who in (
        ("policy+reference", ("actor", "reference"), "trainer"),
        ("reference", ("actor", "reference"), "engine"),
        ("policy", ("actor",), "trainer"),
        ("none", ("actor",), "engine"),
    ):
        found = facts(logprob_passes=words)
        assert found.dataflow.roles == roles, words
        assert found.implementation.old_log_prob == who, words


def test_only_the_actor_generates_in_the_stated_format():
    found = facts(precision_gen="FP8", precision_train="FP8")
    assert (found.roles["actor"].precision, found.roles["reference"].precision) == ("fp8", "bf16")
    assert found.implementation.training_dtype == "fp8"


def test_hugging_face_models_run_eagerly_and_expose_their_gathers():
    fsdp, megatron = facts(system="verl", train_backend="FSDP"), facts()
    assert (fsdp.implementation.kernels, fsdp.implementation.fsdp_exposure) == ("eager", 1.0)
    assert (megatron.implementation.kernels, megatron.implementation.fsdp_exposure) == ("fused", 0.0)
    assert fsdp.implementation.loss_head == megatron.implementation.loss_head == "unfused"


def test_nemo_puts_its_engine_to_sleep_with_its_weights():
    assert facts().implementation.sleeping_engine == "keeps-weights"
    assert facts(system="verl").implementation.sleeping_engine == "drops-weights"


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("on, 4096 tokens per micro-batch", 4096),
        ("on, 16,384 tokens", 16384),
        ("sequence packing to 16k", 16384),
        ("on", 4096),  # a micro-batch of the longest sequence, NeMo-RL's default
        ("off", None),
        ("remove_padding", None),
        ("", None),
    ],
)
def test_packing(words, tokens):
    assert facts(seq_packing=words).implementation.packed_tokens == tokens


def test_a_limit_of_tokens_per_gpu_holds_for_a_context_parallel_group():
    words = {"seq_packing": "dynamic batch, max 4096 tokens per GPU"}
    assert facts(**words, train_cp="2").implementation.packed_tokens == 8192
    assert facts(**words, train_cp="").implementation.packed_tokens == 4096
    assert facts(train_cp="2").implementation.packed_tokens == 4096, "of a micro-batch, whatever its ranks"


def test_the_cluster_is_that_of_the_row():
    group = facts(num_gpus="16", gpus_per_node="4").group
    assert (group.nodes, group.gpus_per_node, group.num_gpus, group.nvlink_domain_gpus) == (4, 4, 16, 8)
    assert facts(num_gpus="4").group.gpus_per_node == 4, "a part of a node"


def test_what_two_cells_give_together_need_not_be_a_third():
    split = {"num_gpus": "", "train_gpus": "16", "gen_gpus": "8"}
    assert facts(**split, placement="separate").group.num_gpus == 24
    assert facts(num_gpus="", train_gpus="16", gen_gpus="16").group.num_gpus == 16
    assert facts(prompts_per_step="", samples_per_step="2048").workload.prompts == 64


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("BF16", "bf16"),
        ("FP8", "fp8"),
        ("FP8 (KV cache BF16)", "fp8"),
        ("MXFP8", "fp8_block"),
        ("FP8 blockwise", "fp8_block"),
        ("NVFP4", "nvfp4"),
        ("INT4 (W4A16)", "int4"),
    ],
)
def test_rollouts_have_the_format_of_the_row(words, precision):
    """Four bits once passed for bf16."""
    assert facts(precision_gen=words).roles["actor"].precision == precision


@pytest.mark.parametrize(
    ("changes", "rank"),
    [
        ({}, 0),
        ({"algorithm": "GRPO (LoRA)", "notes": "LoRA rank=32"}, 32),
        ({"train_backend": "Megatron-Core LoRA r=64"}, 64),
        ({"system": "verl, LoRA"}, 16),
        ({"notes": "the LoRA run of the same page is faster"}, 0),
    ],
)
def test_adapters_are_those_of_the_run(changes, rank):
    assert facts(**changes).implementation.lora_rank == rank


@pytest.mark.parametrize(
    ("words", "separate"),
    [("colocated", False), ("separate", True), ("non-colocated", True), ("disaggregated (16+16)", True), ("", False)],
)
def test_placements(words, separate):
    """ "non-colocated" once passed for colocated."""
    assert is_separate({"placement": words}) == separate


def test_recomputation_of_some_layers_is_that_of_the_row():
    assert facts(recompute="full, 5 layers").implementation.recompute_layers == 5
    assert facts(recompute="full").implementation.recompute_layers is None
