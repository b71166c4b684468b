"""The plan behind a verl configuration: layouts, batches, offload, the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmap.exports.imported import cache_of_share
from hybridmap.exports.verl.batches import context_degree, is_dynamic, micro_batch, section_of, trains_with_fsdp
from hybridmap.exports.verl.limits import notes_on
from hybridmap.exports.verl.places import ROLLOUT
from hybridmap.exports.verl.programs import FULLY_ASYNC, ONE_STEP_OFF
from profiles.errors import InputError, UnknownNameError
from simulator.cost.kv_budget import bytes_of_tokens
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import (
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

    from hybridmap.exports.verl.read import VerlConfig
    from hybridmap.job.job import Job
    from simulator.facts import Facts


def plan_of(config: VerlConfig, job: Job, pools: Mapping[str, Pool]) -> tuple[Plan, list[str]]:
    """The plan of the run, and notes of what is read another way than it is meant."""
    facts = job.facts()
    notes = [*notes_on(config, facts.dataflow.roles, facts), *_shared_layouts(config, pools)]
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
    schedule = _schedule(config, separate)
    plan = Plan(
        algorithm=facts.algorithm,
        placement=placement_name(tuple(p.roles for p in ordered if p.roles)),
        pools=ordered,
        roles=tuple(entries),
        **schedule,
    )
    return plan, notes


def _schedule(config: VerlConfig, separate: bool) -> dict[str, Any]:
    """How iterations follow each other; in the main program engines with GPUs of their own never stop."""
    if not separate:
        return {}
    if config.program is ONE_STEP_OFF:
        return {"schedule": "one-step-off"}
    if config.program is FULLY_ASYNC:
        # It generates until (1 + threshold) iterations of samples are there (fully_async_rollouter.py:493).
        ahead = config.number("async_training.staleness_threshold")
        updates = bool(config.get("async_training.partial_rollout"))
        return {"schedule": "async", "steps_in_flight": max(1, round(1 + ahead)), "in_flight_updates": updates}
    steps = config.whole("trainer.v1.sampler.max_off_policy_threshold")
    return {"schedule": "async", "steps_in_flight": steps, "in_flight_updates": True}


def _entry(config: VerlConfig, role: str, pool: Pool, pools: Mapping[str, Pool], facts: Facts) -> RolePlan:
    kinds = {call.kind for call in facts.dataflow.calls_of(role)}
    section = section_of(config, role)
    trained = "train" in kinds
    layout = _layout(config, role, pool, facts)
    states = ("parameters",) if not trained else ("parameters", "optimizer")
    keys = {"parameters": "param_offload", "optimizer": "optimizer_offload"}
    # FSDP keeps a reference's parameters in host memory, whatever its keys say (engine/fsdp/transformer_impl.py:459).
    streamed = trains_with_fsdp(config) and (not trained or bool(config.get(f"{section}.offload_policy")))
    offload = tuple(state for state in states if streamed or config.get(f"{section}.{keys[state]}"))
    engine = pools.get("rollout", pool)
    return RolePlan(
        role=role,
        pool=pool.name,
        training=layout if trained else None,
        inference=_scoring(config, role, layout, facts) if "forward" in kinds else None,
        generation=_generation(config, engine, facts) if "generate" in kinds else None,
        generation_pool=engine.name if "generate" in kinds and engine is not pool else None,
        offload=offload,  # type: ignore[arg-type]
    )


def _layout(config: VerlConfig, role: str, pool: Pool, facts: Facts) -> ParallelLayout:
    section, model = section_of(config, role), "critic.model" if role == "critic" else "actor_rollout_ref.model"
    if trains_with_fsdp(config):
        degrees = {"cp": context_degree(config, role), "zero_stage": 3}
        recompute = "full" if config.get(f"{model}.enable_gradient_checkpointing") else "none"
    else:
        degrees = _megatron_degrees(config, first_built(pool))
        degrees["zero_stage"] = _megatron_zero(config, section)
        recompute = _granularity(config, f"{section}.override_transformer_config.recompute_granularity")
    ranks = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees["cp"]
    if pool.num_gpus % ranks:
        raise InputError(f"{config.source}: {role}: {pool.num_gpus} GPUs do not divide into tp x pp x cp = {ranks}")
    stage = "training"
    if role == "reference":
        recompute, stage = "none", "inference"
    micro = micro_batch(config, role, stage)
    record = {"dp": pool.num_gpus // ranks, "micro_batch": micro, "recompute": recompute, **degrees}
    return ParallelLayout.model_validate(record)


def first_built(pool: Pool) -> str:
    """The role whose Megatron degrees all roles of a pool get.

    verl runs them in one process, and its engine keeps the parallel state that it finds
    (workers/engine/megatron/transformer_impl.py:244). A critic's engine is built with its worker, before any model is
    (workers/engine_workers.py:136), then the reference's, then the actor's (lines 587 and 644 there).
    """
    return next(role for role in ("critic", "reference", "actor") if role in pool.roles)


def _megatron_degrees(config: VerlConfig, role: str) -> dict[str, int]:
    section = section_of(config, role)
    names = {"tp": "tensor", "pp": "pipeline", "ep": "expert"}
    degrees = {key: config.whole(f"{section}.{name}_model_parallel_size") for key, name in names.items()}
    degrees["cp"] = config.whole(f"{section}.context_parallel_size")
    # verl fills up the number of micro-batches of tokens (workers/engine/megatron/transformer_impl.py:875), so it is
    # not known beforehand; such a pipeline is priced without its chunks.
    chunks = config.whole_or(f"{section}.virtual_pipeline_model_parallel_size", 1)
    degrees["vpp"] = 1 if is_dynamic(config, role, "training") else chunks
    return degrees


def _shared_layouts(config: VerlConfig, pools: Mapping[str, Pool]) -> list[str]:
    """Roles whose own degrees do not count, since another engine of their process is built first."""
    if trains_with_fsdp(config):
        return []
    out = []
    for role in (role for role in ("actor", "critic", "reference") if role in pools):
        first = first_built(pools[role])
        own, shared = (_megatron_degrees(config, each) for each in (role, first))
        if own != shared:
            out.append(
                f"{role}: verl keeps one Megatron layout a process, that of the {first}, which it builds first: "
                f"t{shared['tp']} p{shared['pp']} counts, the {role}'s own t{own['tp']} p{own['pp']} does not"
            )
    return out


def _granularity(config: VerlConfig, key: str) -> str:
    level = config.get(key) or "none"
    if level not in RECOMPUTE_LEVELS:
        raise UnknownNameError(f"value of {key}", str(level), RECOMPUTE_LEVELS)
    return str(level)


def _megatron_zero(config: VerlConfig, section: str) -> int:
    return 1 if config.get(f"{section}.use_distributed_optimizer") else 0


def _scoring(config: VerlConfig, role: str, layout: ParallelLayout, facts: Facts) -> ParallelLayout:
    """A trained role scores in its training layout, with a micro-batch of its own."""
    if role == "reference":
        return layout
    micro = micro_batch(config, role, "inference")
    return layout.model_copy(update={"micro_batch": micro, "recompute": "none"})


def _served(config: VerlConfig, pool: Pool, facts: Facts) -> ParallelLayout:
    tp = config.whole("reward.reward_model.rollout.tensor_model_parallel_size")
    if pool.num_gpus % tp:
        raise InputError(f"{config.source}: reward model: {pool.num_gpus} GPUs do not divide into replicas of {tp}")
    tokens = config.whole("reward.reward_model.rollout.max_num_batched_tokens")
    micro = max(1, tokens // facts.workload.padded_length)
    return ParallelLayout(dp=pool.num_gpus // tp, tp=tp, zero_stage=0, micro_batch=micro)


def _generation(config: VerlConfig, pool: Pool, facts: Facts) -> GenerationLayout:
    tp, copies = (config.whole(f"{ROLLOUT}.{key}_parallel_size") for key in ("tensor_model", "data"))
    if pool.num_gpus % (tp * copies):
        raise InputError(f"{config.source}: rollout: {pool.num_gpus} GPUs do not divide into replicas of {tp * copies}")
    if facts.roles["actor"].shape.moe is None:
        copies = 1  # of an engine: attention copies that share its experts; of a dense model they are replicas
    tp *= copies
    slots = min(config.whole(f"{ROLLOUT}.max_num_seqs"), int(facts.generation.max_num_seqs))
    layout = GenerationLayout(
        dp=pool.num_gpus // tp,
        tp=tp,
        ep=config.whole(f"{ROLLOUT}.expert_parallel_size"),
        attention_dp=copies,
        max_num_seqs=slots,
        kv_cache_bytes=0,
    )
    return layout.model_copy(update={"kv_cache_bytes": _kv_cache(config, layout, facts)})


def _kv_cache(config: VerlConfig, layout: GenerationLayout, facts: Facts) -> int:
    """What the engine's share of memory leaves beside its weights and its workspace, at most what its slots can use."""
    stated = f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
    if config.get(stated) is not None:
        return config.whole(stated, MOST_BYTES)
    left = cache_of_share(facts, layout, config.share(f"{ROLLOUT}.gpu_memory_utilization"))
    columns = GenerationLayouts.of([layout])
    tokens = np.asarray([layout.max_num_seqs * facts.workload.padded_length])
    return min(left, int(bytes_of_tokens(facts, facts.roles["actor"].shape, columns, tokens)[0]))
