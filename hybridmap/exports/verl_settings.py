"""A plan as keys of verl 0.9.1 (its Hydra configuration ``ppo_trainer``); a key with ``+`` is one that verl adds to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.export import Settings, note_scoring_layouts
from hybridmap.exports.verl_engines import reward_keys, rollout_keys
from hybridmap.exports.verl_layouts import (
    fsdp_keys,
    last_stage_layers,
    megatron_keys,
    micro_batch,
    trained_keys,
    whole_pool,
)
from hybridmap.exports.verl_places import ACTOR, REF, ROLLOUT, home, needs_subclass, own_pools, uses_fsdp

if TYPE_CHECKING:
    from hybridmap.exports.export import Source

ADVANTAGES = {
    "ppo": "gae", "safe-rlhf": "gae", "remax": "remax", "grpo": "grpo", "rloo": "rloo", "dapo": "grpo",
    "reinforce++": "reinforce_plus_plus",
}  # fmt: skip
KL_IN_LOSS = ("grpo", "rloo", "dapo")
"""Algorithms whose KL term is part of the loss; in the others it is taken off the reward."""


def verl_settings(source: Source) -> Settings:
    """Every key that the plan decides, and where verl cannot follow."""
    out = Settings()
    fsdp = uses_fsdp(source)
    out.put({"model_engine": "dp" if fsdp else "megatron"})
    _work(source, out)
    _cluster(source, out)
    trained_keys("actor", ACTOR, source, fsdp, out)
    rollout_keys(source, out)
    _reference(source, fsdp, out)
    _critic(source, fsdp, out)
    reward_keys(source, out)
    _schedule(source, out)
    note_scoring_layouts(source, out)
    _not_there(source, out)
    return out


def _work(source: Source, out: Settings) -> None:
    work, algorithm = source.facts.workload, source.facts.algorithm
    out.put({"algorithm.adv_estimator": ADVANTAGES[algorithm]})
    out.put({
        "train_batch_size": work.prompts, "max_prompt_length": work.prompt_length,
        "max_response_length": work.response.maximum,
    }, "data")  # fmt: skip
    out.put({f"{ROLLOUT}.n": work.samples_per_prompt})
    if work.minibatch_samples % work.samples_per_prompt:
        out.cannot(
            "workload.minibatches",
            f"an optimizer step is {work.minibatch_samples:,} samples; verl counts it in prompts of "
            f"{work.samples_per_prompt} samples each, so it is {source.minibatch_prompts:,} prompts",
        )
    in_loss = source.has("reference") and algorithm in KL_IN_LOSS
    out.put({
        "algorithm.use_kl_in_reward": source.has("reference") and not in_loss, f"{ACTOR}.use_kl_loss": in_loss,
        "algorithm.rollout_correction.bypass_mode": source.old_log_prob_by_engine,
    })  # fmt: skip
    if algorithm == "dapo":
        out.put({f"{ACTOR}.clip_ratio_high": 0.28})
    out.put({"actor_rollout_ref.model.path": source.model("actor")})


def _cluster(source: Source, out: Settings) -> None:
    nodes, gpus = source.nodes(home(source))
    out.put({"trainer.nnodes": nodes, "trainer.n_gpus_per_node": gpus})
    for role, pool in own_pools(source).items():
        nodes, gpus = source.nodes(pool)
        out.put({f"+hybridmap.{role}.nnodes": nodes, f"+hybridmap.{role}.n_gpus_per_node": gpus})


def _reference(source: Source, fsdp: bool, out: Settings) -> None:
    if not source.has("reference"):
        return
    entry = source.plan.role("reference")
    layout = entry.inference
    assert layout is not None, "the reference scores"
    samples = source.facts.workload.num_samples
    section = f"{REF}.{'fsdp_config' if fsdp else 'megatron'}"
    if entry.pool != source.actor.pool:
        out.cannot(
            "reference.pool",
            f"verl keeps the reference in the actor's workers; the plan gives it pool {entry.pool}, whose "
            f"{source.plan.pool_of('reference').num_gpus:,} GPUs it will not use",
        )
    layout = whole_pool("reference", "inference", layout, home(source), out)
    out.put({"log_prob_micro_batch_size_per_gpu": micro_batch("reference", "inference", layout, samples, out)}, REF)
    if fsdp:
        fsdp_keys("reference", section, layout, out, forward=True)
    else:
        megatron_keys("reference", section, layout, out, forward=True)
        last = last_stage_layers(source.facts.roles["reference"].shape.num_layers, layout.pp)
        uneven = {} if last is None else {"num_layers_in_last_pipeline_stage": last}
        # Left alone, the reference takes over what the actor's transformer is told, its uneven stages too.
        out.put({"override_transformer_config": {"attention_backend": "flash", **uneven}}, section)
    if "swap" in entry.offload:
        out.cannot("reference.offload", "a reference that swaps with the actor; verl offloads its parameters instead")
    out.put({"param_offload": bool(entry.offload)}, section)


def _critic(source: Source, fsdp: bool, out: Settings) -> None:
    out.put({"critic.enable": source.has("critic")})
    if not source.has("critic"):
        return
    out.put({"critic.model.path": source.model("critic")})
    trained_keys("critic", "critic", source, fsdp, out)
    entry, work = source.plan.role("critic"), source.facts.workload
    assert entry.inference is not None, "the critic scores"
    score = micro_batch("critic", "inference", entry.inference, work.num_samples, out)
    engine = f"+critic.{'fsdp' if fsdp else 'megatron'}"
    # The trainer does not pass critic.ppo_micro_batch_size_per_gpu on to the engine, whose own keys default to
    # dynamic batches of 32,768 tokens; so they are set as well.
    out.put({
        "use_dynamic_bsz": False, "micro_batch_size_per_gpu": out.values["critic.ppo_micro_batch_size_per_gpu"],
        "infer_micro_batch_size_per_gpu": score,
    }, engine)  # fmt: skip


def _schedule(source: Source, out: Settings) -> None:
    plan, work = source.plan, source.facts.workload
    if not source.actor.separate_generation:
        mode = "hybridmap_pools" if needs_subclass(source) else "sync"
        out.put({"trainer.v1.trainer_mode": mode})
        _overlap(source, out)
        return
    nodes, gpus = source.nodes(plan.generation_pool_of("actor"))
    out.put({
        "trainer.v1.trainer_mode": "hybridmap_pools_async" if needs_subclass(source) else "separate_async",
        "actor_rollout_ref.hybrid_engine": False,
        f"{ROLLOUT}.nnodes": nodes, f"{ROLLOUT}.n_gpus_per_node": gpus,
        f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
        "trainer.v1.separate_async.parameter_sync_step": work.minibatches,
        "trainer.v1.sampler.max_off_policy_threshold": plan.steps_in_flight,
    })  # fmt: skip
    if plan.schedule == "sync":
        out.cannot("schedule", "verl with its own rollout GPUs always trains on samples of an earlier iteration")
    if source.has("reward") and source.plan.pool_of("reward") == home(source):
        out.cannot("reward.pool", "verl asks for GPUs of its own for a reward model in separate_async mode")


def _overlap(source: Source, out: Settings) -> None:
    if len(source.plan.pools) > 1 and not needs_subclass(source):
        out.cannot("schedule", "verl's step is serial: calls of different pools do not run at the same time")
    if source.plan.resharding != "hybridflow":
        out.cannot("resharding", f"the plan reshards as {source.plan.resharding}; verl has one way, tensor by tensor")


def _not_there(source: Source, out: Settings) -> None:
    if source.facts.algorithm == "safe-rlhf":
        out.cannot(
            "cost",
            "verl has no Safe-RLHF: no cost model, no pretraining loss, no multiplier; exported as PPO without them",
        )
    precisions = {role: spec.precision for role, spec in source.facts.roles.items() if spec.precision != "bf16"}
    for role, precision in precisions.items():
        out.cannot(f"models.{role}.precision", f"{precision} is not exported; set the engine's quantization by hand")
