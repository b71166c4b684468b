#!/usr/bin/env bash
# reads: actor_rollout_ref.model.path=Qwen/Qwen2.5-32B-Instruct actor_rollout_ref.rollout.tensor_model_parallel_size=8 trainer.nnodes=4
# plan: gpus=32 training=t1p1d32 generation=t8d4
SIZE=${SIZE:-32B}
case "${SIZE}" in
    0.5B|1.5B|3B) tp=1; nodes=1 ;;
    7B) tp=2; nodes=1 ;;
    14B | 32B)
        tp=8
        nodes=4
        ;;
    *) echo "no such size" >&2; exit 1 ;;
esac
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-${SIZE}-Instruct \
    actor_rollout_ref.rollout.tensor_model_parallel_size=$tp trainer.nnodes=$nodes
