"""A run of OpenRLHF's ``train_ppo_ray`` as a job and a plan: the other way round of ``openrlhf.settings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.imported import Engine, Setup
from hybridmap.exports.keys import Keys
from hybridmap.exports.launched import flags_of, launched
from hybridmap.exports.models import known_model
from hybridmap.exports.openrlhf.follow import TRAINER
from hybridmap.exports.openrlhf.settings import NAMES
from hybridmap.exports.values import value_of
from profiles.errors import InputError, UnknownNameError
from simulator.plan.plan import ParallelLayout, TokenBudget
from simulator.systems.targets import ENGINE_SEQUENCES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEFAULTS: dict[str, Any] = {
    "algo.advantage.estimator": "gae",
    "algo.kl.init_coef": 0.01,
    "rollout.batch_size": 1024,
    "rollout.n_samples_per_prompt": 1,
    "rollout.micro_batch_size": 1,
    "train.batch_size": 128,
    "train.micro_batch_size": 1,
    "train.max_epochs": 1,
    "train.max_tokens_per_gpu": 16192,
    "train.async_queue_size": 1,
    "data.max_len": 2048,
    "ds.zero_stage": 2,
    "ds.tensor_parallel_size": 1,
    "ds.ring_attn_size": 1,
    "ds.lora.rank": 0,
    "vllm.tensor_parallel_size": 1,
    "vllm.gpu_memory_utilization": 0.95,
    **{f"{name}.num_nodes": 1 for name in NAMES.values()},
    **{f"{name}.num_gpus_per_node": 8 for name in NAMES.values()},
}
"""Of ``openrlhf/cli/train_ppo_ray.py`` of 0.11.2, for the flags that are read."""
ALGORITHMS = {
    "gae": "ppo",
    "reinforce": "reinforce++",
    "reinforce_baseline": "reinforce++",
    "rloo": "rloo",
    "group_norm": "grpo",
    "dr_grpo": "grpo",
}
_TRAINER = "openrlhf.cli.train_ppo_ray"


def read_openrlhf(path: Path, environment: Mapping[str, str], text: str | None = None) -> Keys:
    """The flags of a launch script; ``text`` where it is no file yet. Errors as in ``launched``."""
    words = launched(path, environment, lambda word: word == _TRAINER, _TRAINER, text)
    given = {name: _value(values) for name, values in flags_of(words).items()}
    return Keys(str(path), given, DEFAULTS)


def _value(words: list[str]) -> Any:
    if not words:
        return True
    values = [value_of(word) for word in words]
    return values[0] if len(values) == 1 else values


# Long by what a setup holds: a line for each part of the command.
def setup_of(keys: Keys, named: bool = True) -> Setup:
    """What a run's flags say; ``named``: whether its models are looked up. Errors name what is not read."""
    estimator = keys.get("algo.advantage.estimator")
    if estimator not in ALGORITHMS:
        raise UnknownNameError("--algo.advantage.estimator", str(estimator), ALGORITHMS)
    roles = _roles(keys, ALGORITHMS[estimator])
    models = {}
    for role in roles:
        key = f"{NAMES['actor' if role == 'reference' else role]}.model_name_or_path"
        stated = keys.path(key if key in keys.given else "actor.model_name_or_path")
        models[role] = known_model(keys.source, f"--{key}", stated, named, role)
    pools = _pools(keys, roles)
    prompts, samples = keys.whole("rollout.batch_size"), keys.whole("rollout.n_samples_per_prompt")
    response = keys.whole("rollout.max_new_tokens") if keys.get("rollout.max_new_tokens") else 1024
    return Setup(
        keys.source,
        ALGORITHMS[estimator],
        models,
        {
            "prompts": prompts,
            "samples_per_prompt": samples,
            "prompt_length": max(keys.whole("data.max_len") - response, 1),
            "response_length": response,
            "minibatches": max(1, prompts * samples // keys.whole("train.batch_size")),
            "epochs": keys.whole("train.max_epochs"),
        },
        keys.whole("actor.num_gpus_per_node"),
        pools,
        {"training": TRAINER, "generation": "vllm"},
        {"old_log_prob": "trainer", "lora_rank": keys.whole("ds.lora.rank", 0)},
        {role: _layouts(keys, role, next(num for inside, num in pools if role in inside)) for role in roles},
        Engine(
            tp=keys.whole("vllm.tensor_parallel_size"),
            max_num_seqs=ENGINE_SEQUENCES,
            memory_share=keys.number("vllm.gpu_memory_utilization"),
        ),
        _offload(keys, roles),
        **_schedule(keys),
        notes=tuple(_notes(keys, ALGORITHMS[estimator])),
    )


def _notes(keys: Keys, algorithm: str) -> Iterator[str]:
    yield "no published run of DeepSpeed 0.19 was there to fit: its constants are counted, or other trainers'"
    if keys.whole("ds.zero_stage", 0) in (1, 2) and not keys.get("ds.overlap_comm"):
        yield "without --ds.overlap_comm gradients are reduced after the backward pass; priced as beside it"
    if keys.get("train.colocate_all") and not keys.get("ds.enable_sleep") and "critic" in _roles(keys, algorithm):
        yield "without --ds.enable_sleep critic and actor train at once on the same GPUs; priced by turns"
    if keys.get("ds.adam_offload"):
        yield "--ds.adam_offload updates on the host's CPUs, which has no price; priced as states that are copied"
    if keys.get("algo.dynamic_filtering_enable"):
        yield "dynamic filtering: prompts that are sampled and dropped are not priced"


def _roles(keys: Keys, algorithm: str) -> tuple[str, ...]:
    there = {
        "actor": True,
        "critic": algorithm == "ppo",
        "reference": keys.number("algo.kl.init_coef") > 0,
        "reward": keys.get("reward.model_name_or_path") is not None and keys.get("reward.remote_url") is None,
    }
    return tuple(role for role, is_there in there.items() if is_there)


def _pools(keys: Keys, roles: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], int], ...]:
    """All share the actor's GPUs, or pairs do, and the engines have their own."""
    sizes = {
        role: keys.whole(f"{NAMES[role]}.num_nodes") * keys.whole(f"{NAMES[role]}.num_gpus_per_node") for role in roles
    }
    if keys.get("train.colocate_all"):
        return ((roles, sizes["actor"]),)
    groups: list[tuple[str, ...]] = []
    for flag, pair in (
        ("colocate_actor_ref", ("actor", "reference")),
        ("colocate_critic_reward", ("critic", "reward")),
    ):
        inside = tuple(role for role in pair if role in roles)
        groups += [inside] if keys.get(f"train.{flag}") else [(role,) for role in inside]
    engines = keys.whole("vllm.num_engines") * keys.whole("vllm.tensor_parallel_size")
    order = sorted((group for group in groups if group), key=lambda group: roles.index(group[0]))
    return (*((group, sizes[group[0]]) for group in order), ((), engines))


def _layouts(keys: Keys, role: str, num_gpus: int) -> tuple[ParallelLayout | None, ParallelLayout | None]:
    tp, cp = keys.whole("ds.tensor_parallel_size"), keys.whole("ds.ring_attn_size")
    if num_gpus % (tp * cp):
        raise InputError(f"{keys.source}: {role}: {num_gpus} GPUs do not divide into tp x ring = {tp * cp}")
    zero = keys.whole("ds.zero_stage", 0)
    common: dict[str, Any] = {"dp": num_gpus // (tp * cp), "tp": tp, "cp": cp}
    common_training = common | {"recompute": "full" if keys.get("actor.gradient_checkpointing_enable") else "none"}
    training = ParallelLayout(**common_training, zero_stage=zero, micro_batch=_micro(keys, "train", cp))
    forward_zero = zero if role in ("actor", "critic") else 3 if zero == 3 else 0
    scoring = ParallelLayout(**common, zero_stage=forward_zero, micro_batch=_micro(keys, "rollout", cp))
    return training, scoring


def _micro(keys: Keys, stage: str, cp: int) -> int | TokenBudget:
    if not keys.get("train.dynamic_batch_enable"):
        return keys.whole(f"{stage}.micro_batch_size")
    stated = keys.get(f"{stage}.max_tokens_per_gpu")
    return TokenBudget(tokens=cp * (keys.whole("train.max_tokens_per_gpu") if stated is None else stated))


def _offload(keys: Keys, roles: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    out: dict[str, tuple[str, ...]] = {}
    for role in roles:
        if role in ("actor", "critic"):
            out[role] = ("optimizer",) if keys.get("ds.enable_sleep") or keys.get("ds.adam_offload") else ()
        else:
            streams = keys.get(f"{NAMES[role]}.offload") and keys.whole("ds.zero_stage", 0) == 3
            out[role] = ("parameters",) if streams else ()
    return out


def _schedule(keys: Keys) -> dict[str, Any]:
    if not keys.get("train.async_enable"):
        return {}
    return {
        "schedule": "async",
        "steps_in_flight": keys.whole("train.async_queue_size"),
        "in_flight_updates": bool(keys.get("train.partial_rollout_enable")),
    }
