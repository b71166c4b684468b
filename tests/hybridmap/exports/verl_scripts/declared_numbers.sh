#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=12 data.train_batch_size=384 trainer.nnodes=3
# plan: gpus=24 training=t1p1d24
declare -i n=3
n+=9
let "batch = n * 32"
((nodes = n >= 12 ? 3 : 1))
printf -v words 'data.train_batch_size=%d' "$batch"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=$n "$words" actor_rollout_ref.actor.ppo_mini_batch_size=192 trainer.nnodes=$nodes
