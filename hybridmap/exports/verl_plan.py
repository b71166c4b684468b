"""The plan behind a verl configuration: layouts, batches, offload, the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.verl_job import trains_with_fsdp
from hybridmap.exports.verl_places import ACTOR, REF, ROLLOUT
from profiles.errors import InputError, UnknownNameError
from simulator import memory
from simulator.layouts import GenerationLayouts
from simulator.plan import (
    MOST_BYTES,
    RECOMPUTE_LEVELS,
    GenerationLayout,
    ParallelLayout,
    Plan,
    Pool,
    RolePlan,
    placement_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.config import Job
    from hybridmap.exports.verl_config import VerlConfig
    from simulator.facts import Facts


def plan_of(config: VerlConfig, job: Job, pools: Mapping[str, Pool]) -> tuple[Plan, list[str]]:
    """The plan of the run, and notes of what is read another way than it is meant."""
    facts, notes = job.facts(), []
    entries = []
    for role in facts.dataflow.roles:
        pool = pools[role]
        if role == "reward":
            entries.append(RolePlan(role=role, pool=pool.name, inference=_served(config, pool, facts)))
            notes.append("the reward model is served by an inference engine; priced as a forward pass in its tp")
            continue
        entries.append(_entry(config, role, pool, pools, facts))
    own = {pool.name: pool for pool in pools.values()}
    ordered = tuple(sorted(own.values(), key=lambda pool: pool.first_gpu))
    separate = "rollout" in pools
    steps = config.whole("trainer.v1.sampler.max_off_policy_threshold") if separate else 1
    plan = Plan(
        algorithm=facts.algorithm, placement=placement_name(tuple(p.roles for p in ordered if p.roles)),
        pools=ordered, roles=tuple(entries), schedule="async" if separate else "sync",
        steps_in_flight=steps, in_flight_updates=separate,
    )  # fmt: skip
    if config.get(f"{ACTOR}.use_dynamic_bsz"):
        notes.append("dynamic batches are taken as packs of ppo_max_token_len_per_gpu tokens")
    return plan, notes


def _entry(config: VerlConfig, role: str, pool: Pool, pools: Mapping[str, Pool], facts: Facts) -> RolePlan:
    kinds = {call.kind for call in facts.dataflow.calls_of(role)}
    place = {"actor": ACTOR, "critic": "critic", "reference": REF}[role]
    section = f"{place}.{('fsdp' if role == 'critic' else 'fsdp_config') if trains_with_fsdp(config) else 'megatron'}"
    trained = "train" in kinds
    layout = _layout(config, role, section, pool, facts)
    states = ("parameters",) if not trained else ("parameters", "optimizer")
    keys = {"parameters": "param_offload", "optimizer": "optimizer_offload"}
    offload = tuple(state for state in states if config.get(f"{section}.{keys[state]}"))
    engine = pools.get("rollout", pool)
    return RolePlan(
        role=role, pool=pool.name,
        training=layout if trained else None,
        inference=_scoring(config, role, layout) if "forward" in kinds else None,
        generation=_generation(config, engine, facts) if "generate" in kinds else None,
        generation_pool=engine.name if "generate" in kinds and engine is not pool else None,
        offload=offload,  # type: ignore[arg-type]
    )  # fmt: skip


def _layout(config: VerlConfig, role: str, section: str, pool: Pool, facts: Facts) -> ParallelLayout:
    model = "critic.model" if role == "critic" else "actor_rollout_ref.model"
    if trains_with_fsdp(config):
        cp = config.whole(f"{section}.ulysses_sequence_parallel_size")
        zero = 3 if config.get(f"{section}.reshard_after_forward") else 2
        degrees = {"cp": cp, "zero_stage": zero}
        recompute = "full" if config.get(f"{model}.enable_gradient_checkpointing") else "none"
    else:
        names = {"tp": "tensor", "pp": "pipeline", "ep": "expert"}
        degrees = {key: config.whole(f"{section}.{name}_model_parallel_size") for key, name in names.items()}
        degrees["cp"] = config.whole(f"{section}.context_parallel_size")
        degrees["vpp"] = config.whole_or(f"{section}.virtual_pipeline_model_parallel_size", 1)
        degrees["zero_stage"] = _megatron_zero(config, section)
        recompute = _granularity(config, f"{section}.override_transformer_config.recompute_granularity")
    ranks = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees["cp"]
    if pool.num_gpus % ranks:
        raise InputError(f"{config.source}: {role}: {pool.num_gpus} GPUs do not divide into tp x pp x cp = {ranks}")
    if role == "reference":
        recompute = "none"
    micro = _micro_batch(config, role, section, facts)
    record = {"dp": pool.num_gpus // ranks, "micro_batch": micro, "recompute": recompute, **degrees}
    return ParallelLayout.model_validate(record)


def _granularity(config: VerlConfig, key: str) -> str:
    level = config.get(key) or "none"
    if level not in RECOMPUTE_LEVELS:
        raise UnknownNameError(f"value of {key}", str(level), RECOMPUTE_LEVELS)
    return str(level)


def _megatron_zero(config: VerlConfig, section: str) -> int:
    if config.get(f"{section}.use_megatron_fsdp"):
        return 3
    return 1 if config.get(f"{section}.use_distributed_optimizer") else 0


def _micro_batch(config: VerlConfig, role: str, section: str, facts: Facts) -> int:
    if facts.implementation.packed_tokens:
        return 1
    if role == "reference":
        return _stated(config, f"{REF}.log_prob_micro_batch_size_per_gpu")
    place = ACTOR if role == "actor" else "critic"
    own = f"{section}.micro_batch_size_per_gpu"
    if role == "critic" and config.get(own) is not None:
        return config.whole(own)
    return _stated(config, f"{place}.ppo_micro_batch_size_per_gpu")


def _stated(config: VerlConfig, key: str) -> int:
    if config.get(key) is None:
        raise InputError(f"{config.source}: {key} is not set, and use_dynamic_bsz is off; verl refuses that too")
    return config.whole(key)


def _scoring(config: VerlConfig, role: str, layout: ParallelLayout) -> ParallelLayout:
    """A trained role scores in its training layout, with a micro-batch of its own."""
    if role == "reference":
        return layout
    engine = "fsdp" if trains_with_fsdp(config) else "megatron"
    keys = {"actor": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"}
    micro = config.whole_or(keys.get(role, f"critic.{engine}.infer_micro_batch_size_per_gpu"), layout.micro_batch)
    return layout.model_copy(update={"micro_batch": micro, "recompute": "none"})


def _served(config: VerlConfig, pool: Pool, facts: Facts) -> ParallelLayout:
    tp = config.whole("reward.reward_model.rollout.tensor_model_parallel_size")
    if pool.num_gpus % tp:
        raise InputError(f"{config.source}: reward model: {pool.num_gpus} GPUs do not divide into replicas of {tp}")
    tokens = config.whole("reward.reward_model.rollout.max_num_batched_tokens")
    return ParallelLayout(dp=pool.num_gpus // tp, tp=tp, micro_batch=max(1, tokens // facts.workload.padded_length))


def _generation(config: VerlConfig, pool: Pool, facts: Facts) -> GenerationLayout:
    tp = config.whole(f"{ROLLOUT}.tensor_model_parallel_size")
    tp *= config.whole(f"{ROLLOUT}.data_parallel_size")  # of one engine: attention copies that share its experts
    copies = config.whole(f"{ROLLOUT}.data_parallel_size")
    if pool.num_gpus % tp:
        raise InputError(f"{config.source}: rollout: {pool.num_gpus} GPUs do not divide into replicas of {tp}")
    slots = min(config.whole(f"{ROLLOUT}.max_num_seqs"), int(facts.generation.max_num_seqs))
    layout = GenerationLayout(
        dp=pool.num_gpus // tp, tp=tp, ep=config.whole(f"{ROLLOUT}.expert_parallel_size"), attention_dp=copies,
        max_num_seqs=slots, kv_cache_bytes=0,
    )  # fmt: skip
    return layout.model_copy(update={"kv_cache_bytes": _kv_cache(config, layout, facts)})


def _kv_cache(config: VerlConfig, layout: GenerationLayout, facts: Facts) -> int:
    """What the engine's share of memory leaves beside its weights and its workspace, at most what its slots can use."""
    stated = f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
    if config.get(stated) is not None:
        return config.whole(stated, MOST_BYTES)
    spec, columns = facts.roles["actor"], GenerationLayouts.of([layout])
    weights = float(memory.generation_weight_bytes(spec.shape, columns, 2.0)[0])
    workspace = float(memory.generation_working_bytes(facts, spec.shape, columns)[0])
    share = config.share(f"{ROLLOUT}.gpu_memory_utilization") * facts.memory_capacity_bytes
    per_token = float(memory.kv_bytes_per_token(spec.shape, columns.tp, columns.pp)[0])
    useful = per_token * layout.max_num_seqs * facts.workload.padded_length
    return max(int(min(share - weights - workspace, useful)), 0)
