#!/usr/bin/env bash
# reads: trainer.nnodes=1 actor_rollout_ref.rollout.n=8
# plan: gpus=8 training=t1p1d8
set -euo pipefail
trap 'echo stopped' EXIT
ray stop --force || true
ray start --head --num-gpus 8 > /dev/null 2>&1 &
sleep 0
pids=$!
readonly ROLLOUT_N=8
{
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=1 actor_rollout_ref.rollout.n="$ROLLOUT_N"
} |& tee train.log
