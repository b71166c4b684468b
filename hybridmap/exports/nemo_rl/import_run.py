"""A run of NeMo-RL's GRPO as a job and a plan: the other way round of ``nemo_rl.export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.imported import Engine, Setup, tokens_of
from hybridmap.exports.models import known_model
from profiles.errors import InputError
from simulator.plan.plan import ParallelLayout, TokenBudget

if TYPE_CHECKING:
    from hybridmap.exports.keys import Keys

SPECULATIVE = "policy.generation.vllm_kwargs.speculative_config"
ESTIMATORS = {"grpo": "grpo", "reinforce_plus_plus": "reinforce++"}


# Long by what a setup holds: a line for each part of the file.
def setup_of(keys: Keys, named: bool = True) -> Setup:
    """What a run's settings say; ``named``: whether its models are looked up. Errors name what is not read."""
    estimator = keys.get("grpo.adv_estimator.name")
    if estimator not in ESTIMATORS:
        raise InputError(f"{keys.source}: grpo.adv_estimator.name={estimator} is not read; {', '.join(ESTIMATORS)} are")
    backend = keys.get("policy.generation.backend")
    if backend not in ("vllm", "sglang"):
        raise InputError(f"{keys.source}: policy.generation.backend={backend} is not read; vllm and sglang are")
    megatron, dtensor = (bool(keys.get(f"policy.{name}_cfg.enabled")) for name in ("megatron", "dtensor"))
    if megatron is dtensor:
        raise InputError(f"{keys.source}: one of policy.megatron_cfg.enabled and policy.dtensor_cfg.enabled must be on")
    has_reference = not keys.get("grpo.skip_reference_policy_logprobs_calculation")
    roles = ("actor", "reference") if has_reference else ("actor",)
    model = known_model(keys.source, "policy.model_name", keys.text("policy.model_name"), named)
    pools = _pools(keys, roles)
    training, scoring = _layouts(keys, megatron, pools[0][1])
    prompts, samples = keys.whole("grpo.num_prompts_per_step"), keys.whole("grpo.num_generations_per_prompt")
    return Setup(
        keys.source,
        "rloo" if keys.get("grpo.normalize_rewards") is False else ESTIMATORS[estimator],
        {role: _as_served(keys, role, model) for role in roles},
        {
            "prompts": prompts,
            "samples_per_prompt": samples,
            "prompt_length": keys.whole("data.max_input_seq_length"),
            "response_length": keys.whole("policy.generation.max_new_tokens"),
            "minibatches": max(1, prompts * samples // keys.whole("policy.train_global_batch_size")),
            "epochs": 1,
        },
        keys.whole("cluster.gpus_per_node"),
        pools,
        {"training": "megatron-core" if megatron else "fsdp", "generation": backend},
        _implementation(keys, megatron),
        {"actor": (training, scoring), "reference": (None, scoring)},
        _engine(keys),
        {
            "actor": ("parameters", "optimizer") if keys.get("policy.generation.colocated.enabled") else (),
            "reference": ("swap",),
        },
        **_schedule(keys),
        drafts=max(tokens_of(keys.get(f"{SPECULATIVE}{key}")) for key in ("", ".num_speculative_tokens")),
        notes=tuple(_notes(keys)),
    )


def _as_served(keys: Keys, role: str, model: str) -> str | dict[str, str]:
    """A model with the number format that its engine gets: its FP8 is by blocks."""
    served = role == "actor" and keys.get("policy.generation.vllm_cfg.precision") == "fp8"
    return {"shape": model, "precision": "fp8_block"} if served else model


def _pools(keys: Keys, roles: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], int], ...]:
    """GPUs of the policy, and of engines that have their own (nemo_rl/algorithms/grpo.py:606)."""
    nodes, per_node = keys.whole("cluster.num_nodes"), keys.whole("cluster.gpus_per_node")
    if keys.get("policy.generation.colocated.enabled"):
        return ((roles, nodes * per_node),)
    place = "policy.generation.colocated.resources"
    own = keys.whole(f"{place}.gpus_per_node")
    engines = own if nodes == 1 else keys.whole(f"{place}.num_nodes") * own
    if engines >= nodes * per_node:
        raise InputError(f"{keys.source}: {place}: engines take all {nodes * per_node} GPUs, the policy none")
    return ((roles, nodes * per_node - engines), ((), engines))


def _layouts(keys: Keys, megatron: bool, num_gpus: int) -> tuple[ParallelLayout, ParallelLayout]:
    degrees = _megatron(keys) if megatron else _dtensor(keys)
    ranks = degrees["tp"] * degrees.get("pp", 1) * degrees["cp"]
    if num_gpus % ranks:
        raise InputError(f"{keys.source}: the policy's {num_gpus} GPUs do not divide into tp x pp x cp = {ranks}")
    recompute = degrees.pop("recompute")
    layouts = []
    for samples, tokens, level in (
        ("policy.train_micro_batch_size", "train_mb_tokens", recompute),
        ("policy.logprob_batch_size", "logprob_mb_tokens", "none"),
    ):
        record = {"dp": num_gpus // ranks, "micro_batch": _micro_batch(keys, samples, tokens), "recompute": level}
        layouts.append(ParallelLayout.model_validate({**degrees, **record}))
    return layouts[0], layouts[1]


def _micro_batch(keys: Keys, samples: str, tokens: str) -> int | TokenBudget:
    """Packing and dynamic batches count tokens; the base recipe packs so many full sequences as a micro-batch has."""
    for place in ("policy.sequence_packing", "policy.dynamic_batching"):
        if keys.get(f"{place}.enabled"):
            stated = keys.whole_or_none(f"{place}.{tokens}")
            full = keys.whole("policy.max_total_sequence_length") * keys.whole(samples)
            return TokenBudget(tokens=stated or full)
    return keys.whole(samples)


def _dtensor(keys: Keys) -> dict[str, Any]:
    place = "policy.dtensor_cfg"
    return {
        "tp": keys.whole(f"{place}.tensor_parallel_size"),
        "cp": keys.whole(f"{place}.context_parallel_size"),
        "zero_stage": 3,
        "recompute": "full" if keys.get(f"{place}.activation_checkpointing") else "none",
    }


def _megatron(keys: Keys) -> dict[str, Any]:
    place = "policy.megatron_cfg"
    names = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
    recompute = keys.get(f"{place}.recompute_granularity") or "full"
    return {
        **{key: keys.whole(f"{place}.{name}_parallel_size") for key, name in names.items()},
        "zero_stage": 1 if keys.get(f"{place}.optimizer.use_distributed_optimizer") else 0,
        "recompute": recompute if keys.get(f"{place}.activation_checkpointing") else "none",
        "sequence_parallel": bool(keys.get(f"{place}.sequence_parallel"))
        or keys.get(f"{place}.tensor_model_parallel_size") == 1,
    }


def _implementation(keys: Keys, megatron: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"old_log_prob": "trainer"}
    place = "policy.megatron_cfg.peft" if megatron else "policy.dtensor_cfg.lora_cfg"
    if keys.get(f"{place}.enabled"):
        out["lora_rank"] = keys.whole(f"{place}.dim")
    if megatron and keys.get("policy.megatron_cfg.fp8_cfg.enabled"):
        blocks = keys.get("policy.megatron_cfg.fp8_cfg.fp8_recipe") == "blockwise"
        out["training_dtype"] = "fp8_block" if blocks else "fp8"
    return out


def _engine(keys: Keys) -> Engine:
    place = "policy.generation.vllm_cfg"
    return Engine(
        tp=keys.whole(f"{place}.tensor_parallel_size"),
        pp=keys.whole(f"{place}.pipeline_parallel_size"),
        ep=keys.whole(f"{place}.expert_parallel_size"),
        max_num_seqs=keys.whole_or_none("policy.generation.vllm_kwargs.max_num_seqs"),
        memory_share=keys.number(f"{place}.gpu_memory_utilization"),
    )


def _schedule(keys: Keys) -> dict[str, Any]:
    if not keys.get("grpo.async_grpo.enabled"):
        return {}
    return {
        "schedule": "async",
        "steps_in_flight": keys.whole("grpo.async_grpo.max_trajectory_age_steps"),
        "in_flight_updates": bool(keys.get("grpo.async_grpo.in_flight_weight_updates")),
    }


def _notes(keys: Keys) -> list[str]:
    out = []
    if keys.get("grpo.use_dynamic_sampling"):
        out.append("grpo.use_dynamic_sampling: prompts that are sampled and dropped are not priced")
    if keys.get("policy.generation.vllm_cfg.precision") not in ("bfloat16", "fp8"):
        out.append(f"vllm_cfg.precision={keys.get('policy.generation.vllm_cfg.precision')}: priced as bf16")
    return out
