#!/usr/bin/env bash
# reads: reward.reward_model.model_path=sfairXC/FsfairX-LLaMA3-RM-v0.1
# plan: gpus=8 roles=actor+critic+reward reward=t1p1d8
set -x
export HYDRA_FULL_ERROR=1
python3 -u -m verl.trainer.main_ppo_v0 algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 algorithm.adv_estimator=gae actor_rollout_ref.model.path=Qwen/Qwen3-4B \
    critic.model.path=Qwen/Qwen3-4B reward.reward_model.enable=True \
    reward.reward_model.model_path=sfairXC/FsfairX-LLaMA3-RM-v0.1 \
    reward.reward_model.rollout.tensor_model_parallel_size=1 +critic.fsdp.use_dynamic_bsz=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True critic.fsdp.optimizer_offload=True
