#!/usr/bin/env bash
# refused: model.path=/data/our-model-v3: unknown model.*--model actor=
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=/data/our-model-v3
