"""A plan as flags of OpenRLHF 0.11.2 (``openrlhf.cli.train_ppo_ray``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Settings, note_scoring_layouts
from profiles.units import GIB
from simulator.feasibility import memories_on

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan import ParallelLayout, Pool

ADVANTAGES = {
    "ppo": "gae", "safe-rlhf": "gae", "grpo": "group_norm", "rloo": "rloo", "dapo": "group_norm",
    "reinforce++": "reinforce", "remax": "reinforce",
}  # fmt: skip
NAMES = {"actor": "actor", "critic": "critic", "reference": "ref", "reward": "reward"}
MOST_UTILIZATION = 0.95


def openrlhf_settings(source: Source) -> Settings:
    """Every flag that the plan decides; a flag without a value is ``True``."""
    out = Settings()
    _work(source, out)
    _placement(source, out)
    _training(source, out)
    _engine(source, out)
    note_scoring_layouts(source, out)
    _not_there(source, out)
    return out


def _work(source: Source, out: Settings) -> None:
    work, algorithm = source.facts.workload, source.facts.algorithm
    out.put({
        "algo.advantage.estimator": ADVANTAGES[algorithm], "rollout.batch_size": work.prompts,
        "rollout.n_samples_per_prompt": work.samples_per_prompt, "train.batch_size": work.minibatch_samples,
        "train.max_epochs": work.epochs, "data.max_len": work.padded_length,
        "rollout.max_new_tokens": work.response.maximum, "actor.model_name_or_path": source.model("actor"),
    })  # fmt: skip
    if source.has("reward"):
        out.put({"reward.model_name_or_path": source.model("reward")})
    else:
        out.put({"reward.remote_url": "REWARD_FUNCTION.py"})
        out.cannot("reward", "a reward function is a Python file: put its path in place of REWARD_FUNCTION.py")
    if source.has("critic"):
        out.put({"critic.model_name_or_path": source.model("critic")})
    if source.has("reference") and algorithm in ("grpo", "rloo"):
        out.put({"algo.kl.use_loss": True, "algo.kl.estimator": "k3"})
    if not source.has("reference"):
        out.put({"algo.kl.init_coef": 0})
    if algorithm == "dapo":
        out.put({"actor.eps_clip_low_high": [0.2, 0.28]})


def _placement(source: Source, out: Settings) -> None:
    """Who shares GPUs: all, actor with reference, critic with reward, or nobody."""
    plan = source.plan
    for role, name in NAMES.items():
        if source.has(role):
            nodes, gpus = source.nodes(plan.pool_of(role))
            out.put({f"{name}.num_nodes": nodes, f"{name}.num_gpus_per_node": gpus})
    shared = {frozenset(r for r in pool.roles if r in NAMES) for pool in plan.pools}
    if len(plan.pools) == 1:
        out.put({"train.colocate_all": True, "vllm.enable_sleep": True, "ds.enable_sleep": True})
        return
    for pair, flag in (
        (("actor", "reference"), "colocate_actor_ref"),
        (("critic", "reward"), "colocate_critic_reward"),
    ):
        if frozenset(pair) in shared:
            out.put({f"train.{flag}": True})
    known = {frozenset({"actor", "reference"}), frozenset({"critic", "reward"}), *map(lambda r: frozenset({r}), NAMES)}
    for group in shared - known:
        if group:
            out.cannot(
                "pools", f"{', '.join(sorted(group))} share GPUs; OpenRLHF shares all, actor with reference, or critic "
                "with reward"
            )  # fmt: skip
    if not source.actor.separate_generation:
        out.cannot(
            "actor.generation.pool",
            "without colocate_all the engines get GPUs of their own, on top of those of the plan's pools",
        )


def _training(source: Source, out: Settings) -> None:
    """One ZeRO stage, TP degree and micro-batch for actor and critic: the actor's."""
    layout = source.actor.training
    assert layout is not None, "the actor is trained"
    scores = [e.inference.micro_batch for e in source.plan.roles if e.inference is not None]
    out.put({
        "ds.zero_stage": _zero(layout, out), "ds.tensor_parallel_size": layout.tp, "ds.ring_attn_size": layout.cp,
        "train.micro_batch_size": layout.micro_batch,
        "rollout.micro_batch_size": min(scores, default=layout.micro_batch), "ds.packing_samples": True,
    })  # fmt: skip
    if layout.recompute != "none":
        out.put({"actor.gradient_checkpointing_enable": True})
    if layout.recompute == "selective":
        out.cannot("actor.training.recompute", "only whole layers are recomputed")
    if any("optimizer" in entry.offload for entry in source.plan.roles):
        out.put({"ds.adam_offload": True})
    for role in ("reference", "reward"):
        if source.has(role) and source.plan.role(role).offload:
            out.put({f"{NAMES[role]}.offload": True})
    for entry in source.plan.roles:
        if entry.role in NAMES and (other := entry.training or entry.inference) is not None:
            _one_for_all(entry.role, other, layout, out)


def _zero(layout: ParallelLayout, out: Settings) -> int:
    if layout.zero_stage == 0:
        out.cannot("actor.training.zero_stage", "DeepSpeed in OpenRLHF shards at least the optimizer: ZeRO 1")
    return max(layout.zero_stage, 1)


def _one_for_all(role: str, layout: ParallelLayout, actor: ParallelLayout, out: Settings) -> None:
    for name, degree in (("pp", layout.pp), ("ep", layout.ep)):
        if degree > 1:
            out.cannot(
                f"{role}.{name}", f"OpenRLHF trains with DeepSpeed, which has no {name} here; the plan has {degree}"
            )
    differs = [
        f"{key} {getattr(layout, key)}" for key in ("tp", "cp") if getattr(layout, key) != getattr(actor, key)
    ]  # fmt: skip
    if role != "actor" and differs:
        out.cannot(
            f"{role}.layout", f"one TP and ring size for all models, the actor's; the plan has {', '.join(differs)}"
        )


def _engine(source: Source, out: Settings) -> None:
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    tp = layout.tp * layout.pp
    if layout.pp > 1:
        out.cannot("actor.generation.pp", f"engines have tensor parallelism alone: {tp} ranks")
    out.put({
        "vllm.num_engines": layout.dp, "vllm.tensor_parallel_size": tp,
        "vllm.gpu_memory_utilization": _utilization(source, pool, out), "vllm.enable_prefix_caching": True,
        "vllm.sync_backend": "nccl",
    })  # fmt: skip
    if layout.ep > 1 or layout.attention_dp > 1:
        out.cannot("actor.generation.ep", "no flag for expert or attention parallelism inside an engine")
    out.cannot("actor.generation.max_num_seqs", f"no flag for {layout.max_num_seqs} sequences in flight; vLLM decides")
    if source.plan.schedule != "sync":
        out.put({"train.async_enable": True, "train.async_queue_size": source.plan.steps_in_flight})
        if source.plan.in_flight_updates:
            out.put({"train.partial_rollout_enable": True})
    elif source.actor.separate_generation:
        out.cannot("schedule", "engines wait while the models train; only async training overlaps them")


def _utilization(source: Source, pool: Pool, out: Settings) -> float:
    from hybridmap.exports.weights import engine_weight_bytes

    facts = source.facts.on(pool.device)
    classes = memories_on(source.plan, pool, facts)["actor"].transient["generate_sequences"]
    sizes = {name: float(size[0]) for name, size in classes.items()}
    if sizes.get("generation weights", 0.0) == 0:
        sizes["generation weights"] = engine_weight_bytes(source)
        extra = sizes["generation weights"] / GIB
        out.cannot("actor.generation.kv_cache_bytes", f"vLLM keeps its own weights: {extra:.1f} GiB more than planned")
    share = sum(sizes.values()) / facts.memory_capacity_bytes
    return min(math.ceil(share * 1e4) / 1e4, MOST_UTILIZATION)


def _not_there(source: Source, out: Settings) -> None:
    missing: dict[str, Any] = {
        "safe-rlhf": ("cost", "no Safe-RLHF: no cost model, no multiplier; exported as PPO without them"),
        "remax": ("algorithm", "no ReMax: the greedy baseline is not generated; exported as REINFORCE"),
        "dapo": ("algorithm", "dynamic sampling is left off; add --algo.dynamic_filtering_enable"),
    }
    if source.facts.algorithm in missing:
        out.cannot(*missing[source.facts.algorithm])
    if len(source.plan.pools) > 1:
        return
    if source.has("critic"):
        out.cannot("schedule", "all models take turns; actor and critic are updated one after the other")
