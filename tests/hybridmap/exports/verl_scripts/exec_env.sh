#!/usr/bin/env bash
# reads: trainer.nnodes=1 actor_rollout_ref.rollout.n=8
# plan: gpus=8 training=t1p1d8
export PYTHONUNBUFFERED=1
exec env -u RAY_ADDRESS VLLM_USE_V1=1 python3 -u -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=1 actor_rollout_ref.rollout.n=8
