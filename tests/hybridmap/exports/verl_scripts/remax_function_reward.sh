#!/usr/bin/env bash
# reads: algorithm.adv_estimator=remax
# plan: gpus=8 roles=actor+reference
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct algorithm.adv_estimator=remax algorithm.use_kl_in_reward=True actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8
