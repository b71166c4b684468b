#!/usr/bin/env bash
# reads: trainer.n_gpus_per_node=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1
# plan: gpus=4 training=t1p1d4 generation=t1d4
set -euo pipefail
ngpus=4
tp=1
if ! uv run python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.n_gpus_per_node=${ngpus} \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${tp} 2>&1 | tee "logs/run-$(date +%F).log"; then
    echo failed
fi
