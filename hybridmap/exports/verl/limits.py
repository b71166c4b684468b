"""What of verl is not read: refused by name where it changes what runs, noted where it changes a detail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.verl.batches import context_degree, is_dynamic, section_of, token_budget, trains_with_fsdp
from hybridmap.exports.verl.defaults import is_read
from hybridmap.exports.verl.places import ACTOR, REF, ROLLOUT
from hybridmap.exports.verl.programs import FULLY_ASYNC
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridmap.exports.verl.read import VerlConfig
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts

_WITHOUT_PRICE = {
    "model.mtp.enable": "the head that predicts further tokens has no price, where it trains and where it drafts",
    "router_replay.mode": "experts chosen by the rollout's routing cost nothing here",
    "kv_cache_dtype": "the cache is priced in bf16",
    "speculative_config": "drafts are priced from a job file alone (speculation)",
    "speculative_algorithm": "drafts are priced from a job file alone (speculation)",
    "qat.enable": "quantization while training has no price",
    "use_liger": "Liger's kernels are priced as PyTorch's",
    "use_prefix_grouper": "prompts that share a prefix are priced each for itself",
    "use_mtp": "the head that predicts further tokens has no price",
}
"""Ends of keys that switch on what is read over, and what is priced in its place."""
_OFF = (False, None, "disabled", "auto", "bfloat16", "none")
ENGINES = ("dp", "megatron")
_OTHER_CHIPS = {"mindspeed": "Ascend NPUs"}
STRATEGIES = ("fsdp", "fsdp2", "megatron")
MODES = ("sync", "separate_async", "hybridmap_pools", "hybridmap_pools_async")
_LEAVES = (
    "param_offload",
    "optimizer_offload",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "ulysses_sequence_parallel_size",
    "use_dynamic_bsz",
    "ppo_mini_batch_size",
    "micro_batch_size_per_gpu",
    "max_token_len_per_gpu",
    "max_num_seqs",
    "gpu_memory_utilization",
    "enable_gradient_checkpointing",
    "nnodes",
    "n_gpus_per_node",
)
_ELSEWHERE = ("reward.", "distillation.", "hybridmap.", "reward_model.", "rollout.")


def require_read(config: VerlConfig) -> None:
    """Raise ``InputError`` for a run of a kind that is not read: another engine, other chips, another loop."""
    engine, strategy = config.get("model_engine"), config.get(f"{ACTOR}.strategy")
    if engine in _OTHER_CHIPS:
        instead = (
            f"it runs on {_OTHER_CHIPS[engine]}, which have no prices here; what the run would take on NVIDIA's GPUs"
        )
        raise _not_read(config, "model_engine", engine, f"{instead} is that of a copy with model_engine=megatron")
    if engine not in ENGINES:
        raise _not_read(config, "model_engine", engine, f"runs with {' or '.join(ENGINES)} are")
    if strategy is not None and strategy not in STRATEGIES:
        raise _not_read(config, f"{ACTOR}.strategy", strategy, f"{', '.join(STRATEGIES)} are")
    if config.get("trainer.device") != "cuda":
        raise _not_read(config, "trainer.device", config.get("trainer.device"), "runs on NVIDIA GPUs (cuda) are")
    mode = config.get("trainer.v1.trainer_mode")
    if mode not in MODES:
        raise _not_read(config, "trainer.v1.trainer_mode", mode, f"{', '.join(MODES[:2])} are")
    if config.get("async_training.use_dynamic_resource_scheduling"):
        key = "async_training.use_dynamic_resource_scheduling"
        raise _not_read(config, key, True, "runs whose trainers do not generate meanwhile are")
    for role in ("actor", "critic"):
        if not trains_with_fsdp(config) and config.get(f"{section_of(config, role)}.use_megatron_fsdp"):
            raise _not_read(
                config, f"{section_of(config, role)}.use_megatron_fsdp", True, "model_engine=dp is FSDP that"
            )
    if config.get("distillation.enabled"):
        instead = (
            "a teacher model has no price here; a copy with distillation.enabled=False is read as the run without it"
        )
        raise _not_read(config, "distillation.enabled", True, instead)


def require_text(config: VerlConfig, path: object, shape: ModelShape) -> None:
    """Raise ``InputError`` for a run on images: an encoder and the tokens of images have no price here."""
    keys = [key for key in ("data.image_key", "data.video_key") if config.get(key) is not None]
    if shape.vision_params and keys:
        raise InputError(
            f"{config.source}: {keys[0]}={config.get(keys[0])} with {path}, a vision-language model, is not read: "
            "encoders and tokens of images have no price; for a run on text alone give --model "
            f"actor={shape.name}"
        )


def _not_read(config: VerlConfig, key: str, value: object, instead: str) -> InputError:
    return InputError(f"{config.source}: {key}={value} is not read; {instead}")


def notes_on(config: VerlConfig, roles: tuple[str, ...], facts: Facts) -> Iterator[str]:
    """What is read another way than it is meant, or has no price here."""
    yield from config.notes
    yield from _on_batches(config, roles, facts)
    if "critic" in roles:
        yield from _on_the_critic(config)
    if config.get("algorithm.filter_groups.enable"):
        yield "algorithm.filter_groups: prompts that are sampled and dropped are not priced, only those trained on"
    if config.get(f"{ROLLOUT}.multi_turn.enable"):
        yield "multi_turn: a response is priced as one generation; time in tools is not"
    yield from _on_the_rollout(config, facts)
    if trains_with_fsdp(config):
        yield from _on_fsdp(config, roles, facts)
    yield from _without_price(config)
    yield from _unread(config)


def _on_batches(config: VerlConfig, roles: tuple[str, ...], facts: Facts) -> Iterator[str]:
    if config.get(f"{ACTOR}.use_dynamic_bsz"):
        yield "dynamic batches are taken as packs of ppo_max_token_len_per_gpu tokens"
    for role in (role for role in roles if role != "reward" and not trains_with_fsdp(config)):
        key = f"{section_of(config, role)}.virtual_pipeline_model_parallel_size"
        if config.whole_or(key, 1) > 1 and is_dynamic(config, role, "training"):
            yield f"{key}={config.get(key)}: with micro-batches of tokens, priced as a pipeline of whole stages"
    for role in ("actor", "reference"):
        if role in roles and is_dynamic(config, role, "inference"):
            budget, longest = token_budget(config, role, "inference"), facts.workload.padded_length
            if budget < longest:
                yield f"{role}: micro-batches of {budget:,} tokens; verl stops at a sequence of the full {longest:,}"


def _without_price(config: VerlConfig) -> Iterator[str]:
    for key, value in config.given.items():
        if value not in _OFF and (end := next((end for end in _WITHOUT_PRICE if key.endswith(f".{end}")), None)):
            yield f"{key}={value}: {_WITHOUT_PRICE[end]}"


def _on_the_rollout(config: VerlConfig, facts: Facts) -> Iterator[str]:
    served, quantized = config.get(f"{ROLLOUT}.name"), config.get(f"{ROLLOUT}.quantization")
    if served not in ("vllm", "sglang"):
        yield f"{ROLLOUT}.name={served} has no profile; priced as vllm"
    if quantized not in (None, "fp8"):
        yield f"{ROLLOUT}.quantization={quantized} has no price here; priced as bf16"
    if facts.roles["actor"].shape.vision_params:
        yield "the vision tower counts in memory; images have no price, and the run is read as one on text alone"
    if config.program is FULLY_ASYNC:
        ahead = config.number("async_training.staleness_threshold")
        yield (
            f"async_training.staleness_threshold={ahead:g}: an iteration is what lies between two updates of the "
            f"engines' weights, and {max(1, round(1 + ahead))} of them are priced in flight"
        )


def _on_the_critic(config: VerlConfig) -> Iterator[str]:
    if is_dynamic(config, "critic", "training"):
        tokens = token_budget(config, "critic", "training")
        section = section_of(config, "critic")
        yield (
            f"critic: verl 0.9.1 does not pass critic.ppo_micro_batch_size_per_gpu on, so its engine packs {tokens:,} "
            f"tokens; +{section}.use_dynamic_bsz=False turns that off"
        )
    if config.get("critic.ulysses_sequence_parallel_size") != 1:
        yield (
            "critic.ulysses_sequence_parallel_size does nothing in verl 0.9.1; the engine reads "
            "critic.fsdp.ulysses_sequence_parallel_size"
        )


def _on_fsdp(config: VerlConfig, roles: tuple[str, ...], facts: Facts) -> Iterator[str]:
    world = config.get("trainer.nnodes") * config.get("trainer.n_gpus_per_node")
    for role in (role for role in ("actor", "critic", "reference") if role in roles):
        section = section_of(config, role)
        size = config.get(f"{section}.fsdp_size")
        if size not in (-1, world):
            yield f"{section}.fsdp_size={size}: priced as one group that shards over all {world} GPUs"
        if not config.get(f"{section}.reshard_after_forward"):
            yield f"{section}.reshard_after_forward=False: priced as if the weights were gathered again (ZeRO 3)"
        if config.get(f"{section}.offload_policy"):
            yield (
                f"{section}.offload_policy: priced as states that wait in host memory between calls; FSDP2 also leaves "
                "them there while it trains, and lets the CPU step"
            )
        if context_degree(config, role) > 1 and role != "critic":
            old = f"{ACTOR if role == 'actor' else REF}.ulysses_sequence_parallel_size"
            if config.get(old) > 1 and old in config.given:
                yield f"{old} is deprecated and still wins over {section}.ulysses_sequence_parallel_size"


def _unread(config: VerlConfig) -> Iterator[str]:
    """Keys that look like ones that are read and stand where verl 0.9.1 has none."""
    for key in config.given:
        if key.endswith(_LEAVES) and not key.startswith(_ELSEWHERE) and not is_read(key):
            yield f"{key} is not read: verl 0.9.1 has no such key, or it has no price here"
        elif key.startswith("reward_model.") and key.endswith((".enable", ".path")) and config.given[key]:
            yield f"{key}: verl 0.9.1's main_ppo does not read the old section; the reward model is reward.reward_model"
