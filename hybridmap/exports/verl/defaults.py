"""What verl 0.9.1 takes where a run says nothing, for the keys that are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Same:
    """A default that is another key's value."""

    key: str


_ACTOR, _ROLLOUT, _REF, _CRITIC = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
    "critic",
)

DEFAULTS: dict[str, Any] = {
    "model_engine": "dp",
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.device": "cuda",
    "trainer.v1.trainer_mode": "sync",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "trainer.v1.sampler.max_off_policy_threshold": 8,
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.filter_groups.enable": False,
    "distillation.enabled": False,
    "rollout.nnodes": 1,
    "rollout.n_gpus_per_node": 8,
    "async_training.staleness_threshold": 0.1,
    "async_training.trigger_parameter_sync_step": 4,
    "async_training.require_batches": 1,
    "async_training.partial_rollout": True,
    "async_training.use_dynamic_resource_scheduling": False,
    "data.image_key": None,
    "data.video_key": None,
    "actor_rollout_ref.model.path": None,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.use_fused_kernels": False,
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.model.lora.rank": 0,
    f"{_ACTOR}.strategy": None,
    f"{_ACTOR}.ulysses_sequence_parallel_size": 1,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ACTOR}.ppo_epochs": 1,
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": None,
    f"{_ACTOR}.use_dynamic_bsz": False,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": 16384,
    f"{_ACTOR}.clip_ratio_high": 0.2,
    f"{_ROLLOUT}.name": "vllm",
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.data_parallel_size": 1,
    f"{_ROLLOUT}.pipeline_model_parallel_size": 1,
    f"{_ROLLOUT}.expert_parallel_size": 1,
    f"{_ROLLOUT}.max_num_seqs": 256,
    f"{_ROLLOUT}.max_num_batched_tokens": 8192,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{_ROLLOUT}.nnodes": 0,
    f"{_ROLLOUT}.quantization": None,
    f"{_ROLLOUT}.multi_turn.enable": False,
    f"{_ROLLOUT}.n_gpus_per_node": Same("trainer.n_gpus_per_node"),
    f"{_ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": None,
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": None,
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": Same(f"{_ACTOR}.use_dynamic_bsz"),
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": Same(f"{_ACTOR}.ppo_max_token_len_per_gpu"),
    f"{_REF}.log_prob_micro_batch_size_per_gpu": None,
    f"{_REF}.log_prob_use_dynamic_bsz": Same(f"{_ACTOR}.use_dynamic_bsz"),
    f"{_REF}.log_prob_max_token_len_per_gpu": Same(f"{_ACTOR}.ppo_max_token_len_per_gpu"),
    f"{_REF}.ulysses_sequence_parallel_size": Same(f"{_ACTOR}.ulysses_sequence_parallel_size"),
    f"{_CRITIC}.enable": None,
    f"{_CRITIC}.model.path": None,
    f"{_CRITIC}.ulysses_sequence_parallel_size": 1,
    f"{_CRITIC}.model.enable_gradient_checkpointing": True,
    f"{_CRITIC}.ppo_micro_batch_size_per_gpu": None,
    f"{_CRITIC}.ppo_max_token_len_per_gpu": 32768,
    f"{_CRITIC}.use_dynamic_bsz": Same(f"{_ACTOR}.use_dynamic_bsz"),
    f"{_CRITIC}.ppo_infer_max_token_len_per_gpu": 32768,
    "reward.reward_model.enable": False,
    "reward.reward_model.model_path": None,
    "reward.reward_model.enable_resource_pool": False,
    "reward.reward_model.nnodes": 0,
    "reward.reward_model.n_gpus_per_node": 8,
    "reward.reward_model.rollout.tensor_model_parallel_size": 2,
    "reward.reward_model.rollout.max_num_batched_tokens": 8192,
    "hybridmap.critic.nnodes": None,
    "hybridmap.critic.n_gpus_per_node": 8,
    "hybridmap.reward.nnodes": None,
    "hybridmap.reward.n_gpus_per_node": 8,
}
"""From ``trainer/config/_generated_ppo_trainer.yaml``, and ``experimental/fully_async_policy/config`` for its program;
the ``hybridmap`` ones are those of the trainer subclass. Where images stand is taken for none unless a run says it."""

_ENGINE_DEFAULTS: dict[str, Any] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "virtual_pipeline_model_parallel_size": None,
    "use_distributed_optimizer": True,
    "use_megatron_fsdp": False,
    "sequence_parallel": True,
    "param_offload": False,
    "optimizer_offload": False,
    "reshard_after_forward": True,
    "ulysses_sequence_parallel_size": 1,
    "fsdp_size": -1,
    "offload_policy": False,
    "override_transformer_config.recompute_granularity": None,
    "override_transformer_config.fp8": None,
    "override_transformer_config.fp8_recipe": "delayed",
    "micro_batch_size_per_gpu": None,
    "infer_micro_batch_size_per_gpu": None,
    "use_dynamic_bsz": True,
}
_SECTIONS = (
    f"{_ACTOR}.megatron.",
    f"{_ACTOR}.fsdp_config.",
    f"{_REF}.megatron.",
    f"{_REF}.fsdp_config.",
    f"{_CRITIC}.megatron.",
    f"{_CRITIC}.fsdp.",
)
_INHERITED = ("tensor", "pipeline", "context", "expert", "virtual", "param_offload")
"""What the reference's Megatron section takes from the actor's (``trainer/config/ref/megatron_ref.yaml``)."""


def default_of(key: str) -> Any:
    """The default of a key, or the ``Same`` that it points to; ``KeyError`` for a key that is not read."""
    if key in DEFAULTS:
        return DEFAULTS[key]
    for section in _SECTIONS:
        name = key.removeprefix(section)
        if name != key:
            if section == f"{_REF}.megatron." and name.startswith(_INHERITED):
                return Same(f"{_ACTOR}.megatron.{name}")
            return _ENGINE_DEFAULTS[name]
    raise KeyError(key)


def is_read(key: str) -> bool:
    """Whether a key of verl's is one that is read."""
    try:
        default_of(key)
    except KeyError:
        return False
    return True
