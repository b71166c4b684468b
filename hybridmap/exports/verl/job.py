"""The job behind a verl configuration: its roles and pools, its work, its engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.imported import tokens_of
from hybridmap.exports.models import known_model
from hybridmap.exports.verl.batches import section_of, trains_with_fsdp
from hybridmap.exports.verl.engines import MTP
from hybridmap.exports.verl.limits import require_text
from hybridmap.exports.verl.places import ACTOR, ROLLOUT
from hybridmap.exports.verl.programs import FULLY_ASYNC
from hybridmap.job.leaves import MOST_GPUS_PER_NODE, MOST_NODES
from profiles.engine_facts import engine_names
from profiles.errors import InputError, UnknownNameError
from profiles.models.catalogue import load_model
from simulator.plan.plan import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.exports.imported import Given
    from hybridmap.exports.verl.read import VerlConfig

ALGORITHMS = {
    "gae": "ppo",
    "grpo": "grpo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce++",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus_baseline": "reinforce++",
    "gpg": "grpo",
    "opo": "grpo",
    "grpo_passk": "grpo",
    "gdpo": "grpo",
    "optimal_token_baseline": "grpo",
    "tir_optimal_token_baseline": "grpo",
}
"""Estimators of verl by the algorithm whose calls they make: what is computed from the samples has no price."""
MODEL_KEYS = {
    "actor": "actor_rollout_ref.model.path",
    "reference": "actor_rollout_ref.model.path",
    "critic": "critic.model.path",
    "reward": "reward.reward_model.model_path",
}


def roles_of(config: VerlConfig) -> tuple[str, ...]:
    """Roles of the run, actor first."""
    critic = config.get("critic.enable")
    has_critic = config.get("algorithm.adv_estimator") == "gae" if critic is None else bool(critic)
    reference = bool(config.get("algorithm.use_kl_in_reward")) or bool(config.get(f"{ACTOR}.use_kl_loss"))
    there = {
        "actor": True,
        "critic": has_critic,
        "reference": reference,
        "reward": bool(config.get("reward.reward_model.enable")),
    }
    return tuple(role for role, is_there in there.items() if is_there)


def pools_of(config: VerlConfig, roles: tuple[str, ...], device: str) -> dict[str, Pool]:
    """Each role's pool; GPUs are counted from the actor's, node by node."""
    sizes = {"actor": _num_gpus(config, "trainer")}
    home = dict.fromkeys(roles, "actor")
    if "critic" in roles and config.get("hybridmap.critic.nnodes"):
        sizes["critic"] = _num_gpus(config, "hybridmap.critic")
        home["critic"] = "critic"
    if "reward" in roles and config.get("hybridmap.reward.nnodes") and "critic" in sizes:
        home["reward"] = "critic"
    elif "reward" in roles and config.get("reward.reward_model.enable_resource_pool"):
        place = "reward.reward_model"
        sizes["reward"] = _num_gpus(config, place)
        home["reward"] = "reward"
    if config.get(f"{ROLLOUT}.nnodes"):
        sizes["rollout"] = _num_gpus(config, ROLLOUT)
        home["rollout"] = "rollout"
    made: dict[str, Pool] = {}
    first = 0
    for name, letter in zip(sizes, "ABCD", strict=False):
        inside = tuple(role for role in roles if home[role] == name)
        made[name] = Pool(name=letter, device=device, first_gpu=first, num_gpus=sizes[name], roles=inside)
        first += sizes[name]
    return {role: made[place] for role, place in home.items()}


def _num_gpus(config: VerlConfig, section: str) -> int:
    nodes = config.whole(f"{section}.nnodes", MOST_NODES)
    return nodes * config.whole(f"{section}.n_gpus_per_node", MOST_GPUS_PER_NODE)


def job_of(config: VerlConfig, given: Given, roles: tuple[str, ...], pools: Mapping[str, Pool]) -> dict[str, Any]:
    """The run as a job file would say it; errors as in ``import_verl``."""
    estimator = config.get("algorithm.adv_estimator")
    if not isinstance(estimator, str) or estimator not in ALGORITHMS:
        raise UnknownNameError("algorithm.adv_estimator", str(estimator), ALGORITHMS)
    algorithm = ALGORITHMS[estimator]
    critic = "critic" in roles
    if (algorithm == "ppo") is not critic:
        needs = "needs a critic, not" if algorithm == "ppo" else "has none, not"
        raise InputError(f"{config.source}: algorithm.adv_estimator={estimator} {needs} critic.enable={critic}")
    per_node = config.whole("trainer.n_gpus_per_node", MOST_GPUS_PER_NODE)
    gpus = sum(pool.num_gpus for pool in {pool.name: pool for pool in pools.values()}.values())
    cluster: dict[str, Any] = {"device": given.device, "nodes": -(-gpus // per_node), "gpus_per_node": per_node}
    if given.inter_node_gbps is not None:
        cluster["inter_node_gbps"] = given.inter_node_gbps
    return {
        "algorithm": algorithm,
        "models": {role: _as_served(config, role, _model(config, role, given)) for role in roles},
        "workload": _workload(config, given),
        "cluster": [cluster],
        "engines": _engines(config),
        "implementation": _implementation(config, roles),
    }


def _as_served(config: VerlConfig, role: str, model: str) -> str | dict[str, str]:
    """A model with the number format that its engine gets: verl's FP8 is by blocks (vllm_async_server.py:1244)."""
    served = role == "actor" and config.get(f"{ROLLOUT}.quantization") == "fp8"
    return {"shape": model, "precision": "fp8_block"} if served else model


def drafted_tokens(config: VerlConfig) -> int:
    """Tokens that the rollout's engines draft in a step; how many of them are kept no key says."""
    place = f"{ROLLOUT}.engine_kwargs.vllm.speculative_config"
    own = bool(config.given.get(f"{MTP}.enable")) and bool(config.given.get(f"{MTP}.enable_rollout"))
    keys = [f"{MTP}.speculative_num_steps", f"{MTP}.num_speculative_tokens"] if own else []
    keys += [place, f"{place}.num_speculative_tokens"]
    return max(tokens_of(config.given.get(key)) for key in keys)


def _model(config: VerlConfig, role: str, given: Given) -> str:
    if given.models and role in given.models:
        return given.models[role]
    path = config.path(MODEL_KEYS[role])
    if given.models and "actor" in given.models and path == config.path(MODEL_KEYS["actor"]):
        return given.models["actor"]
    if not isinstance(path, str):
        raise InputError(f"{config.source}: no {MODEL_KEYS[role]}; name the {role}'s model with --model {role}=NAME")
    found = known_model(config.source, MODEL_KEYS[role], path, role=role)
    require_text(config, path, load_model(found))
    return found


def _workload(config: VerlConfig, given: Given) -> dict[str, Any]:
    mini = config.whole(f"{ACTOR}.ppo_mini_batch_size")
    # A fully asynchronous trainer takes its samples by mini-batches, and its iteration is what lies between two updates
    # of the engines' weights (experimental/fully_async_policy/fully_async_trainer.py:159, :684).
    steps = _steps_between_updates(config)
    prompts = config.whole("data.train_batch_size") if steps is None else mini * steps
    if mini > prompts:
        raise InputError(f"{config.source}: ppo_mini_batch_size {mini} is more than train_batch_size {prompts}")
    longest = config.whole("data.max_response_length")
    mean = given.mean_response_length
    response: Any = longest if mean is None else {"distribution": "lognormal", "mean": mean, "max": longest}
    work = {
        "prompts": prompts,
        "samples_per_prompt": config.whole(f"{ROLLOUT}.n"),
        "prompt_length": config.whole("data.max_prompt_length"),
        "response_length": response,
        "epochs": config.whole(f"{ACTOR}.ppo_epochs"),
        "minibatches": -(-prompts // mini),
    }
    if given.prompt_tokens is not None:
        work["prompt_tokens"] = given.prompt_tokens
    if config.get("actor_rollout_ref.model.use_remove_padding") is False:
        work["pads_prompts"] = True
    return work


def _steps_between_updates(config: VerlConfig) -> int | None:
    """Optimizer steps of a fully asynchronous trainer from one update of the engines' weights to the next."""
    if config.program is not FULLY_ASYNC:
        return None
    return config.whole("async_training.require_batches") * config.whole("async_training.trigger_parameter_sync_step")


def _engines(config: VerlConfig) -> dict[str, str]:
    train = "fsdp" if trains_with_fsdp(config) else "megatron-core"
    serve = config.get(f"{ROLLOUT}.name")
    kinds = {"training": train, "generation": serve if serve in ("vllm", "sglang") else "vllm"}
    return {
        kind: [name for name in engine_names(kind) if name.split("@")[0] == engine][-1]  # type: ignore[arg-type]
        for kind, engine in kinds.items()
    }


def _implementation(config: VerlConfig, roles: tuple[str, ...]) -> dict[str, Any]:
    bypass = bool(config.get("algorithm.rollout_correction.bypass_mode"))
    out: dict[str, Any] = {"old_log_prob": "engine" if bypass else "trainer"}
    section = section_of(config, "actor")
    if not trains_with_fsdp(config) and config.get(f"{section}.override_transformer_config.fp8"):
        recipe = config.get(f"{section}.override_transformer_config.fp8_recipe")
        out["training_dtype"] = "fp8_block" if recipe == "blockwise" else "fp8"
    # The FSDP engine takes log-probs of the unpadded logits with FlashAttention's cross-entropy, in place where no
    # entropy is asked for (workers/engine/fsdp/transformer_impl.py:1425).
    if trains_with_fsdp(config) and config.get("actor_rollout_ref.model.use_remove_padding"):
        out["loss_head"] = "fused" if config.get("actor_rollout_ref.model.use_fused_kernels") else "in-place"
    for key in ("actor_rollout_ref.model.lora.rank", "actor_rollout_ref.model.lora_rank"):  # the first one wins
        if config.get(key):
            return out | {"lora_rank": config.whole(key)}
    return out
