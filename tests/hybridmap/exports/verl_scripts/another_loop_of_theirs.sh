#!/usr/bin/env bash
# refused: starts verl.experimental.vla.main_ppo, whose schedule and keys are not read
python3 -m verl.experimental.vla.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct
