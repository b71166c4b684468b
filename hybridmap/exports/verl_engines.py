"""What inference engines serve in verl, as keys: the rollout, and the reward model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hybridmap.exports.export import Settings
from hybridmap.exports.verl_layouts import micro_batch
from hybridmap.exports.verl_places import REWARD, ROLLOUT, home, own_pools
from hybridmap.exports.weights import engine_weight_bytes
from profiles.units import GIB
from simulator.feasibility import memories_on

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan import GenerationLayout, Pool

MOST_UTILIZATION = 0.95
REWARD_SHARE = 0.25
"""Of a GPU's memory, for the weights of a reward model that an inference engine serves beside other models."""


def rollout_keys(source: Source, out: Settings) -> None:
    """Keys of the rollout engine: its degrees, its slots, its memory."""
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
        sizes["generation weights"] = engine_weight_bytes(source)
        out.cannot(
            "actor.generation.kv_cache_bytes",
            "the plan's engine generates from the trainer's weights; verl's keeps a copy of its own, "
            f"{sizes['generation weights'] / GIB:.1f} GiB per GPU more than planned",
        )
    share = sum(sizes.values()) / facts.memory_capacity_bytes
    return min(math.ceil(share * 1e4) / 1e4, MOST_UTILIZATION)


def reward_keys(source: Source, out: Settings) -> None:
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
