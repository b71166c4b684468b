"""A plan as a NeMo-RL recipe: overrides of its GRPO configuration.

The package index holds a placeholder of NeMo-RL (0.0.0) without schema or recipes, so these keys follow its public
documentation of release 0.5 and nothing has loaded them; the notes of every export say so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import yaml

from hybridmap.exports.export import Export, Settings, note_scoring_layouts, notes_text
from hybridmap.notation import job_title
from profiles.errors import InputError
from simulator.feasibility import memories_on

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan import ParallelLayout

VERSION = "0.5"
ALGORITHMS = ("grpo", "dapo", "rloo")
MOST_UTILIZATION = 0.95


def export_nemo_rl(source: Source) -> Export:
    """The plan for NeMo-RL; ``InputError`` for an algorithm with a critic, which its GRPO loop does not run."""
    if source.facts.algorithm not in ALGORITHMS:
        raise InputError(
            f"NeMo-RL's GRPO loop runs {', '.join(ALGORITHMS)}, not {source.facts.algorithm}; "
            "export to verl or openrlhf"
        )
    found = Settings()
    found.cannot(
        "unchecked", "the package index has no NeMo-RL but a placeholder: these keys follow its documentation of "
        f"release {VERSION} and have not been loaded by it"
    )  # fmt: skip
    _work(source, found)
    _policy(source, found)
    _generation(source, found)
    _cluster(source, found)
    note_scoring_layouts(source, found)
    title = job_title(source.facts)
    recipe = "recipe.yaml"
    head = [f"# {title}", "# Overrides for NeMo-RL's GRPO, written by hybridmap from a plan."]
    body = yaml.safe_dump(_nested(found.values), sort_keys=False)
    base = "grpo_math_8B_megatron.yaml" if not _uses_fsdp(source) else "grpo_math_8B.yaml"
    script = "\n".join([
        "#!/usr/bin/env bash", f"# {title}", "# Run it in a checkout of NeMo-RL.", "set -euo pipefail", "",
        f'uv run examples/run_grpo_math.py --config "$(dirname "$0")/{recipe}" "$@"', "",
    ])  # fmt: skip
    defaults = f"defaults: examples/configs/{base}   # of the checkout\n"
    whole = Export("nemo-rl", VERSION, found.values, tuple(found.points), "run_nemo_rl.sh", {})
    contents = {
        "run_nemo_rl.sh": script,
        recipe: "\n".join([*head, defaults + body]),
        "NOTES.md": notes_text(whole, title),
    }
    return Export(whole.system, whole.version, whole.settings, whole.points, "run_nemo_rl.sh", contents)


def _uses_fsdp(source: Source) -> bool:
    return str(source.job["engines"]["training"]).startswith("fsdp")


def _work(source: Source, out: Settings) -> None:
    work = source.facts.workload
    out.put({
        "num_prompts_per_step": work.prompts, "num_generations_per_prompt": work.samples_per_prompt,
        "use_leave_one_out_baseline": source.facts.algorithm == "rloo",
    }, "grpo")  # fmt: skip
    out.put({"data.max_input_seq_length": work.prompt_length, "policy.max_total_sequence_length": work.padded_length})
    out.put({"policy.model_name": source.model("actor"), "policy.train_global_batch_size": work.minibatch_samples})
    out.put({"loss_fn.reference_policy_kl_penalty": 0.01 if source.has("reference") else 0.0})
    if source.has("reward"):
        out.cannot("reward", f"a reward model ({source.model('reward')}) becomes an environment; write env.* by hand")
    if work.epochs > 1:
        out.cannot("workload.epochs", f"{work.epochs} passes over the samples; NeMo-RL makes one")


def _policy(source: Source, out: Settings) -> None:
    layout, score = source.actor.training, source.actor.inference
    assert layout is not None, "the actor is trained"
    reference = source.plan.role("reference").inference if source.has("reference") else None
    logprob = min(x.micro_batch for x in (score, reference, layout) if x is not None)
    out.put({"policy.train_micro_batch_size": layout.micro_batch, "policy.logprob_batch_size": logprob})
    fsdp = _uses_fsdp(source)
    out.put({"policy.dtensor_cfg.enabled": fsdp, "policy.megatron_cfg.enabled": not fsdp})
    out.put(_engine(layout, fsdp), "policy.dtensor_cfg" if fsdp else "policy.megatron_cfg")
    if layout.recompute == "selective":
        out.cannot("actor.training.recompute", "activation checkpointing is of whole layers")
    if not fsdp and layout.zero_stage not in (0, 1):
        out.cannot("actor.training.zero_stage", f"Megatron's distributed optimizer is ZeRO 1, not {layout.zero_stage}")
    if reference is not None and (reference.tp, reference.pp) != (layout.tp, layout.pp):
        out.cannot("reference.inference", "the reference is the policy's workers with other weights, in its layout")


def _engine(layout: ParallelLayout, fsdp: bool) -> dict[str, Any]:
    full = layout.recompute != "none"
    if fsdp:
        return {
            "tensor_parallel_size": layout.tp, "context_parallel_size": layout.cp,
            "sequence_parallel": layout.tp > 1, "activation_checkpointing": full, "cpu_offload": False,
        }  # fmt: skip
    return {
        "tensor_model_parallel_size": layout.tp, "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp, "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1 if layout.ep > 1 else layout.tp,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1, "activation_checkpointing": full,
        "distributed_data_parallel_config.use_distributed_optimizer": layout.zero_stage >= 1,
    }  # fmt: skip


def _generation(source: Source, out: Settings) -> None:
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    facts = source.facts.on(pool.device)
    classes = memories_on(source.plan, pool, facts)["actor"].transient["generate_sequences"]
    share = sum(float(size[0]) for size in classes.values()) / facts.memory_capacity_bytes
    out.put({
        "backend": "vllm", "max_new_tokens": source.facts.workload.response.maximum,
        "colocated.enabled": not source.actor.separate_generation,
        "vllm_cfg.tensor_parallel_size": layout.tp, "vllm_cfg.pipeline_parallel_size": layout.pp,
        "vllm_cfg.expert_parallel_size": layout.ep, "vllm_cfg.max_model_len": source.facts.workload.padded_length,
        "vllm_cfg.gpu_memory_utilization": min(math.ceil(share * 1e4) / 1e4, MOST_UTILIZATION),
        "vllm_cfg.async_engine": source.plan.schedule != "sync", "vllm_kwargs.max_num_seqs": layout.max_num_seqs,
    }, "policy.generation")  # fmt: skip
    if source.actor.separate_generation:
        nodes, gpus = source.nodes(pool)
        out.put({"num_nodes": nodes, "gpus_per_node": gpus}, "policy.generation.colocated.resources")
    if source.plan.schedule != "sync":
        out.put({"enabled": True, "max_trajectory_age_steps": source.plan.steps_in_flight}, "grpo.async_grpo")


def _cluster(source: Source, out: Settings) -> None:
    nodes = sum(source.nodes(pool)[0] for pool in source.plan.pools)
    out.put({"cluster.num_nodes": nodes, "cluster.gpus_per_node": source.nodes(source.plan.pool_of("actor"))[1]})
    apart = [p for p in source.plan.pools if p.roles and "actor" not in p.roles]
    for pool in apart:
        out.cannot("pools", f"{', '.join(pool.roles)} on GPUs of their own; NeMo-RL runs them with the policy")


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        at = out
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
    return out
