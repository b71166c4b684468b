"""A plan as keys of verl 0.9.1 (its Hydra configuration ``ppo_trainer``); a key with ``+`` is one that verl adds to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Settings, largest_divisor
from profiles.units import GIB
from simulator.feasibility import memories_on

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan import GenerationLayout, ParallelLayout, Pool, RolePlan

ADVANTAGES = {
    "ppo": "gae", "safe-rlhf": "gae", "remax": "remax", "grpo": "grpo", "rloo": "rloo", "dapo": "grpo",
    "reinforce++": "reinforce_plus_plus",
}  # fmt: skip
KL_IN_LOSS = ("grpo", "rloo", "dapo")
"""Algorithms whose KL term is part of the loss; in the others it is taken off the reward."""

MOST_UTILIZATION = 0.95
REWARD_SHARE = 0.25
"""Of a GPU's memory, for the weights of a reward model that an inference engine serves beside other models."""

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
REWARD = "reward.reward_model"


def verl_settings(source: Source) -> Settings:
    """Every key that the plan decides, and where verl cannot follow."""
    out = Settings()
    fsdp = uses_fsdp(source)
    out.put({"model_engine": "dp" if fsdp else "megatron"})
    _work(source, out)
    _cluster(source, out)
    _trained("actor", ACTOR, source, fsdp, out)
    _rollout(source, out)
    _reference(source, fsdp, out)
    _critic(source, fsdp, out)
    _reward(source, out)
    _schedule(source, out)
    _not_there(source, out)
    return out


def uses_fsdp(source: Source) -> bool:
    """Whether the job trains with FSDP; anything else is exported as Megatron-Core."""
    return str(source.job["engines"]["training"]).startswith("fsdp")


def home(source: Source) -> Pool:
    """The pool that verl calls ``global_pool``: the actor's."""
    return source.plan.pool_of("actor")


def needs_subclass(source: Source) -> bool:
    """Whether a pool exists that verl has no key for."""
    return bool(own_pools(source))


def own_pools(source: Source) -> dict[str, Pool]:
    """Roles on a pool that no key of verl gives them: a critic apart from the actor, a reward model beside it."""
    out = {}
    if source.has("critic") and source.plan.pool_of("critic") != home(source):
        out["critic"] = source.plan.pool_of("critic")
    if source.has("reward"):
        pool = source.plan.pool_of("reward")
        if pool != home(source) and len(pool.roles) > 1 and "critic" in pool.roles:
            out["reward"] = pool
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


def _trained(role: str, place: str, source: Source, fsdp: bool, out: Settings) -> None:
    """Keys of a trained role: its engine, batches and offload."""
    entry, work = source.plan.role(role), source.facts.workload
    assert entry.training is not None, f"{role} is trained"
    layout = whole_pool(role, "training", entry.training, source.plan.pool_of(role), out)
    model = "critic.model" if role == "critic" else "actor_rollout_ref.model"
    steps = source.minibatch_prompts * work.samples_per_prompt
    out.put({
        "ppo_mini_batch_size": source.minibatch_prompts, "ppo_epochs": work.epochs, "use_dynamic_bsz": False,
        "ppo_micro_batch_size_per_gpu": micro_batch(role, "training", layout, steps, out),
    }, place)  # fmt: skip
    _engine(role, place, entry, layout, fsdp, source, out)
    out.put({"enable_gradient_checkpointing": layout.recompute != "none" if fsdp else False}, model)


def micro_batch(role: str, stage: str, layout: ParallelLayout, samples: int, out: Settings) -> int:
    """The plan's micro-batch, or the largest below it that verl can cut a batch of ``samples`` into."""
    if samples % layout.dp:
        out.cannot(f"{role}.{stage}.dp", f"{samples:,} samples do not divide into {layout.dp} data-parallel groups")
        return layout.micro_batch
    found = largest_divisor(layout.micro_batch, samples // layout.dp)
    if found != layout.micro_batch:
        out.cannot(
            f"{role}.{stage}.micro_batch",
            f"verl cuts {samples // layout.dp:,} samples of a rank into equal micro-batches: {found} in place of "
            f"{layout.micro_batch}",
        )
    return found


def whole_pool(role: str, stage: str, layout: ParallelLayout, pool: Pool, out: Settings) -> ParallelLayout:
    """The layout spread over the whole pool, as verl does: fewer pipeline stages where they do not divide it."""
    if layout.num_gpus == pool.num_gpus:
        return layout
    ranks, slice_ = pool.num_gpus, layout.tp * layout.cp
    if ranks % slice_:
        layout, slice_ = layout.model_copy(update={"tp": 1, "cp": 1, "ep": 1}), 1
    pp = next(n for n in range(layout.pp, 0, -1) if ranks % (slice_ * n) == 0)
    filled = layout.model_copy(update={"pp": pp, "dp": ranks // (slice_ * pp)})
    out.cannot(
        f"{role}.{stage}",
        f"verl uses all {ranks:,} GPUs of a pool, the plan {layout.num_gpus:,}; exported as t{filled.tp} p{filled.pp} "
        f"d{filled.dp}",
    )
    return filled


def last_stage_layers(num_layers: int, pp: int) -> int | None:
    """Layers of the last pipeline stage where the stages are uneven, the others rounded up; else ``None``."""
    return None if num_layers % pp == 0 else num_layers - (pp - 1) * -(-num_layers // pp)


def _engine(
    role: str, place: str, entry: RolePlan, layout: ParallelLayout, fsdp: bool, source: Source, out: Settings
) -> None:
    section = f"{place}.{('fsdp' if role == 'critic' else 'fsdp_config') if fsdp else 'megatron'}"
    if fsdp:
        _fsdp(role, section, layout, out)
        out.put({"strategy": "fsdp2"}, place)
    else:
        _megatron(role, section, layout, out)
        _recompute(role, section, layout, out)
        last = last_stage_layers(source.facts.roles[role].shape.num_layers, layout.pp)
        if last is not None:
            out.put({f"+{section}.override_transformer_config.num_layers_in_last_pipeline_stage": last})
    out.put(
        {"param_offload": "parameters" in entry.offload, "optimizer_offload": "optimizer" in entry.offload}, section
    )


def _megatron(role: str, section: str, layout: ParallelLayout, out: Settings, forward: bool = False) -> None:
    out.put({
        "tensor_model_parallel_size": layout.tp, "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp, "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1 if layout.ep > 1 else None,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
    }, section)  # fmt: skip
    if forward:
        return
    out.put({
        "use_distributed_optimizer": layout.zero_stage >= 1, "use_megatron_fsdp": layout.zero_stage == 3,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
    }, section)  # fmt: skip
    if layout.zero_stage == 2:
        out.cannot(
            f"{role}.training.zero_stage", "verl's Megatron shards the optimizer (ZeRO 1), not the gradients too"
        )


def _recompute(role: str, section: str, layout: ParallelLayout, out: Settings) -> None:
    keys: dict[str, Any] = {"recompute_granularity": None if layout.recompute == "none" else layout.recompute}
    if layout.recompute == "full":
        keys |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    elif layout.recompute == "selective":
        keys["recompute_modules"] = ["layernorm"]
        out.cannot(
            f"{role}.training.recompute",
            "the plan also computes the product inside the feed-forward block again; Megatron-Core has no such module "
            "for dense layers, so only the norms are, and the run keeps a little more than planned",
        )
    out.put(keys, f"{section}.override_transformer_config")


def _fsdp(role: str, section: str, layout: ParallelLayout, out: Settings, forward: bool = False) -> None:
    for name, degree in (("tp", layout.tp), ("pp", layout.pp), ("ep", layout.ep)):
        if degree > 1:
            out.cannot(f"{role}.{name}", f"verl's FSDP has no {name}; the plan has {degree}")
    out.put({
        "fsdp_size": -1, "reshard_after_forward": layout.zero_stage == 3,
        "ulysses_sequence_parallel_size": layout.cp,
    }, section)  # fmt: skip
    if layout.zero_stage < 2 and not forward:
        out.cannot(
            f"{role}.training.zero_stage",
            f"FSDP shards gradients and optimizer at least (ZeRO 2); the plan has stage {layout.zero_stage}",
        )


def _rollout(source: Source, out: Settings) -> None:
    entry, facts = source.actor, source.facts
    layout = entry.generation
    assert layout is not None, "the actor generates"
    pool = source.plan.generation_pool_of("actor")
    engine = str(source.job["engines"]["generation"]).split("@")[0]
    name = engine if engine in ("vllm", "sglang") else "vllm"
    if name != engine:
        out.cannot("actor.generation", f"the job generates with {engine}; exported for vllm")
    score = entry.inference or entry.training
    assert score is not None, "the actor is trained"
    out.put({
        "name": name, "tensor_model_parallel_size": _generation_tp(layout, pool, out), "data_parallel_size": 1,
        "pipeline_model_parallel_size": 1, "expert_parallel_size": _generation_ep(layout, out),
        "max_num_seqs": layout.max_num_seqs, "max_num_batched_tokens": int(facts.generation.max_batched_tokens),
        "gpu_memory_utilization": _utilization(source, out), "free_cache_engine": True, "enforce_eager": False,
        "calculate_log_probs": source.old_log_prob_by_engine,
        "log_prob_micro_batch_size_per_gpu": micro_batch(
            "actor", "inference", score, facts.workload.num_samples, Settings()
        ),
    }, ROLLOUT)  # fmt: skip
    if name == "vllm":
        out.put({f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": layout.kv_cache_bytes})
    if layout.attention_dp > 1:
        out.cannot(
            "actor.generation.attention_dp", f"no key for attention as {layout.attention_dp} copies in a replica"
        )


def _generation_tp(layout: GenerationLayout, pool: Pool, out: Settings) -> int:
    if layout.pp > 1:
        out.cannot(
            "actor.generation.pp",
            f"verl refuses pipeline stages of a rollout engine; {layout.tp * layout.pp} tensor-parallel ranks instead",
        )
    used = layout.num_gpus
    if used != pool.num_gpus:
        out.cannot("actor.generation.dp", f"verl starts replicas on all {pool.num_gpus:,} GPUs, the plan on {used:,}")
    return layout.tp * layout.pp


def _generation_ep(layout: GenerationLayout, out: Settings) -> int:
    if layout.ep in (1, layout.tp * layout.pp):
        return layout.ep
    out.cannot("actor.generation.ep", f"verl spreads experts over all {layout.tp} ranks of a replica, not {layout.ep}")
    return layout.tp * layout.pp


def _utilization(source: Source, out: Settings) -> float:
    """Share of a GPU's memory that the engine fills: its weights, its workspace and the KV cache."""
    pool = source.plan.generation_pool_of("actor")
    facts = source.facts.on(pool.device)
    classes = memories_on(source.plan, pool, facts)["actor"].transient["generate_sequences"]
    sizes = {name: float(size[0]) for name, size in classes.items()}
    if sizes.get("generation weights", 0.0) == 0:
        from hybridmap.exports.weights import engine_weight_bytes

        sizes["generation weights"] = engine_weight_bytes(source)
        out.cannot(
            "actor.generation.kv_cache_bytes",
            "the plan's engine generates from the trainer's weights; verl's keeps a copy of its own, "
            f"{sizes['generation weights'] / GIB:.1f} GiB per GPU more than planned",
        )
    share = sum(sizes.values()) / facts.memory_capacity_bytes
    return min(math.ceil(share * 1e4) / 1e4, MOST_UTILIZATION)


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
        _fsdp("reference", section, layout, out, forward=True)
    else:
        _megatron("reference", section, layout, out, forward=True)
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
    _trained("critic", "critic", source, fsdp, out)
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


def _reward(source: Source, out: Settings) -> None:
    """Verl serves the reward model with an inference engine: tensor parallelism, no training layout."""
    out.put({f"{REWARD}.enable": source.has("reward")})
    out.put({f"{REWARD}.rollout.name": out.values[f"{ROLLOUT}.name"]})
    if not source.has("reward"):
        return
    entry, pool = source.plan.role("reward"), source.plan.pool_of("reward")
    layout = entry.inference
    assert layout is not None, "the reward model scores"
    apart = pool != home(source) and "reward" not in own_pools(source)
    shape, capacity = source.facts.roles["reward"].shape, source.facts.on(pool.device).memory_capacity_bytes
    tp = _serving_tp(source, pool)
    weights = shape.num_params_of("scalar") * 2.0 / tp / capacity
    out.put({
        "model_path": source.model("reward"), "enable_resource_pool": apart,
        "rollout.tensor_model_parallel_size": tp,
        "rollout.gpu_memory_utilization": round(min(weights + 0.1, MOST_UTILIZATION), 4),
        "rollout.prompt_length": source.facts.workload.padded_length, "rollout.response_length": 1,
    }, REWARD)  # fmt: skip
    if apart:
        nodes, gpus = source.nodes(pool)
        out.put({"nnodes": nodes, "n_gpus_per_node": gpus}, REWARD)
        others = [role for role in pool.roles if role != "reward"]
        if others:
            out.cannot(
                "reward.pool", f"the reward model gets its pool alone; the plan shares it with {', '.join(others)}"
            )
    degrees = f"t{layout.tp} p{layout.pp} d{layout.dp} mb{layout.micro_batch}"
    out.cannot(
        "reward.inference",
        f"verl serves the reward model with an inference engine in tp {tp}; the plan scores in {degrees} of a trainer",
    )


def _serving_tp(source: Source, pool: Pool) -> int:
    """The smallest tensor-parallel degree at which the weights leave room for others on the GPU."""
    facts = source.facts.on(pool.device)
    shape = facts.roles["reward"].shape
    most = min(pool.num_gpus, facts.group.gpus_per_node)
    degrees: list[int] = [
        n for n in (2**i for i in range(most.bit_length())) if n <= most and shape.max_tensor_parallel_ok(n)
    ]
    room = REWARD_SHARE * facts.memory_capacity_bytes
    fits: list[int] = [n for n in degrees if shape.num_params_of("scalar") * 2.0 / n <= room]
    return fits[0] if fits else degrees[-1]


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
