"""A verl run as a job and a plan: the other way round of ``verl_settings``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.config import job_from_mapping
from hybridmap.exports.export import Source
from profiles.catalogue import hf_id, model_names
from profiles.engine_facts import engine_names
from profiles.errors import InputError, UnknownNameError
from simulator import memory
from simulator.layouts import GenerationLayouts
from simulator.plan import RECOMPUTE_LEVELS, GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.config import Job
    from hybridmap.exports.verl_config import VerlConfig
    from simulator.facts import Facts

ALGORITHMS = {
    "gae": "ppo", "grpo": "grpo", "rloo": "rloo", "remax": "remax", "reinforce_plus_plus": "reinforce++",
    "grpo_vectorized": "grpo", "rloo_vectorized": "rloo", "reinforce_plus_plus_baseline": "reinforce++",
}  # fmt: skip
SUFFIXES = ("-instruct", "-chat-hf", "-chat", "-base", "-hf", "-it")
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL_KEYS = {
    "actor": "actor_rollout_ref.model.path", "reference": "actor_rollout_ref.model.path",
    "critic": "critic.model.path", "reward": "reward.reward_model.model_path",
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What a verl configuration does not say: the GPU, its network, and what lengths really are."""

    device: str
    inter_node_gbps: float | None = None
    mean_response_length: int | None = None
    prompt_tokens: float | None = None
    models: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Imported:
    """The job and the plan of a run, and what could not be read as it is meant."""

    job: Job
    plan: Plan
    notes: tuple[str, ...]

    @property
    def source(self) -> Source:
        return Source(self.plan, self.job.facts(), self.job.document)


def import_verl(config: VerlConfig, given: Given) -> Imported:
    """Read a run.

    Raises ``InputError`` for what hybridmap has no word for: an advantage estimator, a model outside the catalogue,
    a batch that is no whole number.
    """
    roles = _roles(config)
    pools = _pools(config, roles, given.device)
    raw = _job(config, given, roles, pools)
    job = job_from_mapping(raw, config.source, Path())
    plan, notes = _plan(config, job, pools)
    return Imported(job, plan, tuple(notes))


def _roles(config: VerlConfig) -> tuple[str, ...]:
    critic = config.get("critic.enable")
    has_critic = config.get("algorithm.adv_estimator") == "gae" if critic is None else bool(critic)
    reference = bool(config.get("algorithm.use_kl_in_reward")) or bool(config.get(f"{ACTOR}.use_kl_loss"))
    there = {
        "actor": True, "critic": has_critic, "reference": reference,
        "reward": bool(config.get("reward.reward_model.enable")),
    }  # fmt: skip
    return tuple(role for role, is_there in there.items() if is_there)


def _pools(config: VerlConfig, roles: tuple[str, ...], device: str) -> dict[str, Pool]:
    """Each role's pool; GPUs are counted from the actor's, node by node."""
    sizes = {"actor": config.whole("trainer.nnodes") * config.whole("trainer.n_gpus_per_node")}
    home = dict.fromkeys(roles, "actor")
    if "critic" in roles and config.get("hybridmap.critic.nnodes"):
        sizes["critic"] = config.whole("hybridmap.critic.nnodes") * config.whole("hybridmap.critic.n_gpus_per_node")
        home["critic"] = "critic"
    if "reward" in roles and config.get("hybridmap.reward.nnodes") and "critic" in sizes:
        home["reward"] = "critic"
    elif "reward" in roles and config.get("reward.reward_model.enable_resource_pool"):
        place = "reward.reward_model"
        sizes["reward"] = config.whole(f"{place}.nnodes") * config.whole(f"{place}.n_gpus_per_node")
        home["reward"] = "reward"
    if config.get(f"{ROLLOUT}.nnodes"):
        sizes["rollout"] = config.whole(f"{ROLLOUT}.nnodes") * config.whole(f"{ROLLOUT}.n_gpus_per_node")
        home["rollout"] = "rollout"
    made: dict[str, Pool] = {}
    first = 0
    for name, letter in zip(sizes, "ABCD", strict=False):
        inside = tuple(role for role in roles if home[role] == name)
        made[name] = Pool(name=letter, device=device, first_gpu=first, num_gpus=sizes[name], roles=inside)
        first += sizes[name]
    return {role: made[place] for role, place in home.items()}


def _job(config: VerlConfig, given: Given, roles: tuple[str, ...], pools: Mapping[str, Pool]) -> dict[str, Any]:
    estimator = config.get("algorithm.adv_estimator")
    if estimator not in ALGORITHMS:
        raise UnknownNameError("algorithm.adv_estimator", str(estimator), ALGORITHMS)
    algorithm = ALGORITHMS[estimator]
    if algorithm == "ppo" and not {"reward", "reference", "critic"} <= set(roles):
        missing = ", ".join(sorted({"reward", "reference", "critic"} - set(roles)))
        raise InputError(
            f"{config.source}: a PPO run without {missing}; hybridmap's ppo has critic, reference and reward model "
            "(reward.reward_model.enable=True, algorithm.use_kl_in_reward=True)"
        )
    per_node = config.whole("trainer.n_gpus_per_node")
    gpus = sum(pool.num_gpus for pool in {pool.name: pool for pool in pools.values()}.values())
    cluster: dict[str, Any] = {"device": given.device, "nodes": -(-gpus // per_node), "gpus_per_node": per_node}
    if given.inter_node_gbps is not None:
        cluster["inter_node_gbps"] = given.inter_node_gbps
    return {
        "algorithm": algorithm,
        "models": {role: _model(config, role, given) for role in roles},
        "workload": _workload(config, given),
        "cluster": [cluster],
        "engines": _engines(config),
        "implementation": _implementation(config),
    }


def _model(config: VerlConfig, role: str, given: Given) -> str:
    if given.models and role in given.models:
        return given.models[role]
    path = config.get(MODEL_KEYS[role])
    if not isinstance(path, str):
        raise InputError(f"{config.source}: no {MODEL_KEYS[role]}; name the {role}'s model with --model {role}=NAME")
    for name in model_names():
        if path == hf_id(name):
            return name
    short = path.rstrip("/").split("/")[-1].lower()
    names = [short, *(short.removesuffix(suffix) for suffix in SUFFIXES)]
    found = next((name for name in names if name in model_names()), None)
    if found is None and (Path(path) / "config.json").exists():
        return str((Path(path) / "config.json").resolve())
    if found is None:
        known = UnknownNameError("model", short, model_names())
        raise InputError(f"{config.source}: {MODEL_KEYS[role]}={path}: {known}, or give --model {role}=NAME")
    return found


def _workload(config: VerlConfig, given: Given) -> dict[str, Any]:
    prompts, mini = config.whole("data.train_batch_size"), config.whole(f"{ACTOR}.ppo_mini_batch_size")
    if mini > prompts:
        raise InputError(f"{config.source}: ppo_mini_batch_size {mini} is more than train_batch_size {prompts}")
    longest = config.whole("data.max_response_length")
    mean = given.mean_response_length
    response: Any = longest if mean is None else {"distribution": "lognormal", "mean": mean, "max": longest}
    work = {
        "prompts": prompts, "samples_per_prompt": config.whole(f"{ROLLOUT}.n"),
        "prompt_length": config.whole("data.max_prompt_length"), "response_length": response,
        "epochs": config.whole(f"{ACTOR}.ppo_epochs"), "minibatches": -(-prompts // mini),
    }  # fmt: skip
    return work if given.prompt_tokens is None else work | {"prompt_tokens": given.prompt_tokens}


def _engines(config: VerlConfig) -> dict[str, str]:
    train = "fsdp" if _fsdp(config) else "megatron-core"
    serve = config.get(f"{ROLLOUT}.name")
    kinds = {"training": train, "generation": serve if serve in ("vllm", "sglang") else "vllm"}
    return {
        kind: [name for name in engine_names(kind) if name.split("@")[0] == engine][-1]  # type: ignore[arg-type]
        for kind, engine in kinds.items()
    }


def _fsdp(config: VerlConfig) -> bool:
    strategy = config.given.get(f"{ACTOR}.strategy")
    return config.get("model_engine") != "megatron" if strategy is None else str(strategy).startswith("fsdp")


def _implementation(config: VerlConfig) -> dict[str, Any]:
    bypass = bool(config.get("algorithm.rollout_correction.bypass_mode"))
    out: dict[str, Any] = {"old_log_prob": "engine" if bypass else "trainer"}
    if config.get(f"{ACTOR}.use_dynamic_bsz"):
        out["packed_tokens"] = config.whole(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if config.get("actor_rollout_ref.model.lora_rank"):
        out["lora_rank"] = config.whole("actor_rollout_ref.model.lora_rank")
    return out


def _plan(config: VerlConfig, job: Job, pools: Mapping[str, Pool]) -> tuple[Plan, list[str]]:
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
    section = f"{place}.{('fsdp' if role == 'critic' else 'fsdp_config') if _fsdp(config) else 'megatron'}"
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
    if _fsdp(config):
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
    engine = "fsdp" if _fsdp(config) else "megatron"
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
        return config.whole(stated)
    spec, columns = facts.roles["actor"], GenerationLayouts.of([layout])
    weights = float(memory.generation_weight_bytes(spec.shape, columns, 2.0)[0])
    workspace = float(memory.generation_working_bytes(facts, spec.shape, columns)[0])
    share = config.share(f"{ROLLOUT}.gpu_memory_utilization") * facts.memory_capacity_bytes
    per_token = float(memory.kv_bytes_per_token(spec.shape, columns.tp, columns.pp)[0])
    useful = per_token * layout.max_num_seqs * facts.workload.padded_length
    return max(int(min(share - weights - workspace, useful)), 0)
