#!/usr/bin/env bash
# reads: reward.reward_model.enable=True algorithm.use_kl_in_reward=True
# plan: gpus=16 roles=actor+critic+reference+reward
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=2 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 critic.model.path=Qwen/Qwen2.5-7B critic.ppo_micro_batch_size_per_gpu=8 \
    algorithm.use_kl_in_reward=True reward.reward_model.enable=True \
    reward.reward_model.model_path=Qwen/Qwen2.5-7B reward.reward_model.rollout.tensor_model_parallel_size=4
