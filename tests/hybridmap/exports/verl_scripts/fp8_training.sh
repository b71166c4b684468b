#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.megatron.override_transformer_config.fp8=e4m3
# plan: gpus=8 training=t2p1d4 trained=fp8_block served=fp8_block
FP8=(
    +actor_rollout_ref.actor.megatron.override_transformer_config.fp8="e4m3"
    +actor_rollout_ref.actor.megatron.override_transformer_config.fp8_recipe="blockwise"
    +actor_rollout_ref.actor.optim.override_optimizer_config.fp8_recipe="blockwise"
)
python3 -m verl.trainer.main_ppo model_engine=megatron algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.rollout.quantization=fp8 "${FP8[@]}"
