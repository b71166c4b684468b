"""A plan as a recipe for NeMo-RL 0.7: what it sets on top of NeMo-RL's own GRPO configuration.

The package index holds a placeholder of NeMo-RL without schema or recipes. Keys and defaults were read in the source of
release 0.7.0; ``benchmarks/exports/nemo_rl_check.py`` composes a recipe with a checkout and holds it to its schema.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from hybridmap.exports.export import Default, Export, Settings, Times, algorithm_keys, header, notes_text
from hybridmap.exports.formats import vllm_drafts
from hybridmap.exports.imported import setup_as_read
from hybridmap.exports.nemo_rl.follow import followed
from hybridmap.exports.nemo_rl.import_run import setup_of
from hybridmap.exports.nemo_rl.read import keys_of_recipe
from hybridmap.exports.recompute import recomputed_modules
from hybridmap.exports.verl.layouts import last_stage_layers
from hybridmap.exports.verl.places import uses_fsdp
from hybridmap.exports.weights import utilization
from hybridmap.text.notation import job_title
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan.plan import ParallelLayout

VERSION = "0.7.0"
SCRIPT, RECIPE = "run_nemo_rl.sh", "recipe.yaml"
BASE = "examples/configs/grpo_math_1B.yaml"
"""The one configuration of NeMo-RL that has no ``defaults`` of its own; it holds the keys of both trainers."""

ALGORITHM: dict[str, Default] = {
    "grpo.normalize_rewards": Default(True, f"{BASE}:8", "the job's algorithm is rloo, which does not normalise"),
    "grpo.skip_reference_policy_logprobs_calculation": Default(
        False, "nemo_rl/algorithms/grpo.py:180", "the job has no reference"
    ),
    "loss_fn.reference_policy_kl_penalty": Default(0.01, f"{BASE}:56", "the job has no reference"),
    "loss_fn.ratio_clip_max": Default(0.2, f"{BASE}:63", "the job's algorithm is dapo"),
    "loss_fn.use_importance_sampling_correction": Default(
        False, f"{BASE}:69", "NeMo-RL asks for it with async GRPO (nemo_rl/algorithms/grpo.py:3371)"
    ),
    "grpo.async_grpo.enabled": Default(False, f"{BASE}:49", "the plan trains on samples of an earlier step"),
    "grpo.async_grpo.max_trajectory_age_steps": Default(1, f"{BASE}:51", "the plan's steps_in_flight says so"),
    "grpo.async_grpo.in_flight_weight_updates": Default(
        False, f"{BASE}:52", "the plan updates weights while engines generate"
    ),
    "policy.megatron_cfg.peft.enabled": Default(False, f"{BASE}:197", "the job's implementation.lora_rank says so"),
    "policy.dtensor_cfg.lora_cfg.enabled": Default(False, f"{BASE}:135", "the job's implementation.lora_rank says so"),
}
"""What NeMo-RL 0.7 does about the algorithm by itself; another value is written where a job asks for it alone."""


# Long by the text of its files.
def export_nemo_rl(source: Source) -> Export:
    """The plan for NeMo-RL 0.7; ``InputError`` for an algorithm with a critic, which its GRPO loop does not run."""
    ours, points = followed(source)
    values = nemo_rl_settings(ours).values
    recipe = yaml.safe_dump(_nested(values), sort_keys=False)
    written = as_written(recipe, RECIPE, ours)
    times = Times(source.iteration_s(), written.iteration_s())
    whole = Export("nemo-rl", VERSION, values, points, algorithm_keys(values, ALGORITHM), times, SCRIPT, {})
    title = job_title(source.facts)
    head = [
        f"# {title}",
        f"# Set on top of NeMo-RL {VERSION}'s own GRPO configuration, written by hybridmap from a plan. NEMO_RL is the",
        "# folder of a checkout; data, learning rates, logging and checkpoints are yours.",
        *header(whole),
        f"defaults: ${{oc.env:NEMO_RL}}/{BASE}",
        "",
    ]
    script = "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {title}",
            *header(whole),
            "set -euo pipefail",
            f': "${{NEMO_RL:?set NEMO_RL to a checkout of NeMo-RL {VERSION}}}"',
            'NEMO_RL="$(cd "$NEMO_RL" && pwd)"',
            "export NEMO_RL",
            'here="$(cd "$(dirname "$0")" && pwd)"',
            "",
            'cd "$NEMO_RL"',
            f'exec uv run examples/run_grpo.py --config "$here/{RECIPE}" "$@"',
            "",
        ]
    )
    return replace(
        whole, files={SCRIPT: script, RECIPE: "\n".join(head) + recipe, "NOTES.md": notes_text(whole, title)}
    )


def nemo_rl_settings(source: Source) -> Settings:
    """Every key that the plan decides; ``source`` is one that NeMo-RL can follow."""
    found = Settings()
    for part in (_work, _policy, _generation, _cluster):
        part(source, found)
    return found


def as_written(recipe: str, name: str, source: Source) -> Source:
    """What NeMo-RL runs when it is started with a recipe that an export wrote, for the export's own job."""
    return setup_as_read(setup_of(keys_of_recipe(recipe, name), named=False), source)


def _work(source: Source, out: Settings) -> None:
    work, algorithm = source.facts.workload, ALGORITHMS[source.facts.algorithm]
    out.put({"num_prompts_per_step": work.prompts, "num_generations_per_prompt": work.samples_per_prompt}, "grpo")
    if algorithm.name == "rloo":  # GRPO's loop without the division by the deviation
        out.put({"grpo.normalize_rewards": False})
    if not source.has("reference"):
        out.put({"grpo.skip_reference_policy_logprobs_calculation": True})
        out.put({"loss_fn.reference_policy_kl_penalty": 0.0})
    if algorithm.clip_high is not None:
        out.put({"loss_fn.ratio_clip_max": algorithm.clip_high})
    out.put({"data.max_input_seq_length": work.prompt_length, "policy.max_total_sequence_length": work.padded_length})
    out.put({"policy.model_name": source.model("actor"), "policy.train_global_batch_size": work.minibatch_samples})


def _policy(source: Source, out: Settings) -> None:
    layout, score = source.actor.training, source.actor.inference
    assert layout is not None and score is not None, "the actor is trained and gives the old log-probs"
    fsdp, rank = uses_fsdp(source), source.facts.implementation.lora_rank
    samples = [1 if x.token_budget else x.micro_samples for x in (layout, score)]
    out.put({"policy.train_micro_batch_size": samples[0], "policy.logprob_batch_size": samples[1]})
    # Sequence-parallel and context-parallel ranks take equal parts of a sequence.
    parts = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
    out.put({"policy.make_sequence_length_divisible_by": parts})
    out.put({"policy.dtensor_cfg.enabled": fsdp, "policy.megatron_cfg.enabled": not fsdp})
    out.put(_dtensor(layout) if fsdp else _megatron(source, layout))
    if source.facts.implementation.training_dtype == "fp8_block" and not fsdp:
        out.put({"enabled": True, "fp8": "e4m3", "fp8_recipe": "blockwise"}, "policy.megatron_cfg.fp8_cfg")
    if not fsdp:  # its own are torch's, for the other trainer
        out.put({"policy.optimizer": None, "policy.scheduler": None})
    if rank:
        place = "policy.dtensor_cfg.lora_cfg" if fsdp else "policy.megatron_cfg.peft"
        out.put({"enabled": True, "dim": rank}, place)
    out.put({"policy.sequence_packing.enabled": source.tokens_of(layout) is not None})
    if source.tokens_of(layout) is not None:
        tokens = {"train": source.tokens_of(layout), "logprob": source.tokens_of(score)}
        out.put({f"policy.sequence_packing.{k}_mb_tokens": num for k, num in tokens.items()})


def _dtensor(layout: ParallelLayout) -> dict[str, Any]:
    keys = {
        "tensor_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "sequence_parallel": layout.tp > 1,
        "activation_checkpointing": layout.recompute != "none",
        "cpu_offload": False,
    }
    return {f"policy.dtensor_cfg.{key}": value for key, value in keys.items()}


def _megatron(source: Source, layout: ParallelLayout) -> dict[str, Any]:
    last = last_stage_layers(source.facts.roles["actor"].shape.num_layers, layout.pp)
    keys: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1 if layout.ep > 1 else layout.tp,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
        "activation_checkpointing": layout.recompute != "none",
        "optimizer.use_distributed_optimizer": layout.zero_stage >= 1,
    }
    if layout.recompute == "selective":
        keys |= {
            "recompute_granularity": "selective",
            "recompute_modules": recomputed_modules(source.facts.roles["actor"].shape),
        }
    if last is not None:
        keys["num_layers_in_last_pipeline_stage"] = last
    return {f"policy.megatron_cfg.{key}": value for key, value in keys.items()}


# Long by the keys of the section: a line for each.
def _generation(source: Source, out: Settings) -> None:
    layout, plan = source.actor.generation, source.plan
    assert layout is not None, "the actor generates"
    out.put(
        {
            "backend": "vllm",
            "max_new_tokens": source.facts.workload.response.maximum,
            "colocated.enabled": not source.actor.separate_generation,
            "vllm_cfg.tensor_parallel_size": layout.tp,
            "vllm_cfg.pipeline_parallel_size": layout.pp,
            "vllm_cfg.expert_parallel_size": layout.ep,
            "vllm_cfg.max_model_len": source.facts.workload.padded_length,
            "vllm_cfg.gpu_memory_utilization": utilization(source),
            "vllm_kwargs.max_num_seqs": layout.max_num_seqs,
        },
        "policy.generation",
    )
    if source.facts.roles["actor"].precision == "fp8_block":
        out.put({"policy.generation.vllm_cfg.precision": "fp8"})
    drafts = vllm_drafts(source)
    if drafts is not None:  # arguments of vLLM itself (nemo_rl/models/generation/vllm/config.py:55)
        out.put({"policy.generation.vllm_kwargs.speculative_config": drafts})
    if plan.schedule == "sync":
        return
    out.put({"policy.generation.vllm_cfg.async_engine": True, "loss_fn.use_importance_sampling_correction": True})
    out.put(
        {
            "enabled": True,
            "max_trajectory_age_steps": plan.steps_in_flight,
            "in_flight_weight_updates": plan.in_flight_updates,
        },
        "grpo.async_grpo",
    )


def _cluster(source: Source, out: Settings) -> None:
    """Nodes of policy and engines together; on one node, the GPUs of both."""
    per_node = source.facts.group.gpus_per_node
    own = source.plan.generation_pool_of("actor") if source.actor.separate_generation else None
    sizes = [source.plan.pool_of("actor").num_gpus] + ([own.num_gpus] if own else [])
    one_node = sum(sizes) <= per_node
    nodes, gpus = (1, sum(sizes)) if one_node else (sum(-(-size // per_node) for size in sizes), per_node)
    out.put({"cluster.num_nodes": nodes, "cluster.gpus_per_node": gpus})
    if own:
        resources = {"num_nodes": None if one_node else -(-own.num_gpus // per_node)}
        resources["gpus_per_node"] = own.num_gpus if one_node else per_node
        out.put(resources, "policy.generation.colocated.resources")


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        at = out
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
    return out
