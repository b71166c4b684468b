"""What inference engines serve in verl, as keys: the rollout, and the reward model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.formats import vllm_drafts
from hybridmap.exports.verl.layouts import token_budget
from hybridmap.exports.verl.places import REWARD, ROLLOUT, home, own_pools
from hybridmap.exports.verl.programs import MAIN, program_for
from hybridmap.exports.weights import MOST_UTILIZATION, utilization

if TYPE_CHECKING:
    from hybridmap.exports.export import Settings, Source

MTP = "actor_rollout_ref.model.mtp"
"""Where the model's own prediction layers stand."""
REWARD_SHARE = 0.25
"""Of a GPU's memory, for the weights of a reward model that an inference engine serves beside other models."""
REWARD_TOKENS = 8192
"""Tokens of a step of the reward model's engine: verl's default of ``max_num_batched_tokens``."""


def served_by(source: Source) -> tuple[str, str]:
    """The job's generation engine and the one of verl's that stands for it."""
    engine = str(source.job.engines.generation).split("@")[0]
    return engine, engine if engine in ("vllm", "sglang") else "vllm"


# Long by the keys of a rollout: a line for each.
def rollout_keys(source: Source, out: Settings) -> None:
    """Keys of the rollout engine: its degrees, its slots, its memory."""
    layout, score = source.actor.generation, source.actor.inference or source.actor.training
    assert layout is not None and score is not None, "the actor generates and is trained"
    name = served_by(source)[1]
    out.put(
        {
            "name": name,
            "tensor_model_parallel_size": layout.tp,
            "data_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "expert_parallel_size": layout.ep,
            "max_num_seqs": layout.max_num_seqs,
            "max_num_batched_tokens": int(source.facts.generation.max_batched_tokens),
            "gpu_memory_utilization": utilization(source),
            "enforce_eager": False,
        },
        ROLLOUT,
    )
    if program_for(source.plan) is MAIN:  # the others set it themselves, since their engines never free it
        out.put({f"{ROLLOUT}.free_cache_engine": True})
    if (
        source.facts.roles["actor"].precision == "fp8_block"
    ):  # verl quantizes by blocks of 128 (vllm_async_server.py:1244)
        out.put({f"{ROLLOUT}.quantization": "fp8"})
    out.put(_draft_keys(source, name))
    packed = token_budget(source, score)
    if packed is None:
        out.put({f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": score.micro_batch})
    else:
        out.put({"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": packed}, ROLLOUT)
    if name == "vllm":
        out.put({f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": layout.kv_cache_bytes})


def _draft_keys(source: Source, engine: str) -> dict[str, Any]:
    """Drafts by the model's own layers (workers/config/model.py:30), or by a draft model, which is vLLM's argument."""
    config, tokens = vllm_drafts(source), source.draft_tokens
    if config is None:
        return {}
    if "model" in config:
        return {f"+{ROLLOUT}.engine_kwargs.vllm.speculative_config": config}
    count = {"num_speculative_tokens": tokens}
    if engine == "sglang":
        count = {"speculative_num_steps": tokens, "speculative_num_draft_tokens": tokens + 1}
    return {f"{MTP}.{key}": value for key, value in ({"enable": True, "enable_rollout": True} | count).items()}


def reward_keys(source: Source, out: Settings) -> None:
    """Verl serves the reward model with an inference engine: tensor parallelism, no training layout."""
    out.put({f"{REWARD}.enable": source.has("reward")})
    out.put({f"{REWARD}.rollout.name": out.values[f"{ROLLOUT}.name"]})
    if not source.has("reward"):
        return
    pool, layout = source.plan.pool_of("reward"), source.plan.role("reward").inference
    assert layout is not None, "the reward model scores"
    apart = pool != home(source) and "reward" not in own_pools(source)
    shape, capacity = source.facts.roles["reward"].shape, source.facts.on(pool.device).memory_capacity_bytes
    weights = shape.num_params_of("scalar") * 2.0 / layout.tp / capacity
    out.put(
        {
            "model_path": source.model("reward"),
            "enable_resource_pool": apart,
            "rollout.tensor_model_parallel_size": layout.tp,
            "rollout.gpu_memory_utilization": round(min(weights + 0.1, MOST_UTILIZATION), 4),
            "rollout.prompt_length": source.facts.workload.padded_length,
            "rollout.response_length": 1,
        },
        REWARD,
    )
    if apart:
        nodes, gpus = source.nodes(pool)
        out.put({"nnodes": nodes, "n_gpus_per_node": gpus}, REWARD)


def serving_degrees(source: Source) -> tuple[int, ...]:
    """Tensor-parallel degrees of a reward model that leave others room on a GPU, least first; else the most there is.

    One degree, without meaning, where there is no reward model.
    """
    if not source.has("reward"):
        return (1,)
    pool = source.plan.pool_of("reward")
    facts = source.facts.on(pool.device)
    shape = facts.roles["reward"].shape
    most = min(pool.num_gpus, facts.group.gpus_per_node)
    degrees = [2**i for i in range(most.bit_length()) if 2**i <= most and pool.num_gpus % 2**i == 0]
    degrees = [n for n in degrees if shape.max_tensor_parallel_ok(n)]
    room = REWARD_SHARE * facts.memory_capacity_bytes
    return tuple(n for n in degrees if shape.num_params_of("scalar") * 2.0 / n <= room) or (degrees[-1],)
