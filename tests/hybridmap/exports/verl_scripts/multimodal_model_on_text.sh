#!/usr/bin/env bash
# reads: actor_rollout_ref.model.path=Qwen/Qwen3-VL-8B-Instruct
# plan: gpus=8 training=t1p1d8
# note: vision tower counts in memory
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen3-VL-8B-Instruct
