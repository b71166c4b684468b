#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.nnodes=2
# plan: gpus=16 generation=t4d4
declare -A TP=([7b]=2 [14b]=4 [32b]=8)
declare -A NODES
NODES[14b]=2
size=14b
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-14B-Instruct \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${TP[$size]} trainer.nnodes="${NODES[$size]}"
