#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=6 trainer.nnodes=1
# plan: gpus=8 training=t1p1d8
n=6
set -- --quiet
while [[ $# -gt 0 ]]; do
    case $1 in
        --n) n=$2; shift 2 ;;
        --quiet) quiet=1; shift ;;
        *) break ;;
    esac
done
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=$n "$@"
