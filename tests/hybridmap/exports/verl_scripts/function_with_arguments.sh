#!/usr/bin/env bash
# reads: trainer.nnodes=4 actor_rollout_ref.rollout.n=12 actor_rollout_ref.rollout.temperature=0.6
# plan: gpus=32 training=t1p1d32
run() {
    local nodes="$1" n=$2
    shift 2
    python3 -u -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
        trainer.nnodes="$nodes" actor_rollout_ref.rollout.n="$n" "$@"
}
function main {
    run 4 12 actor_rollout_ref.rollout.temperature=0.6
}
main "$@"
