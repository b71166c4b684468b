#!/usr/bin/env bash
# reads: trainer.nnodes=1 actor_rollout_ref.rollout.n=2
# plan: gpus=8 training=t1p1d8
export CUDA_DEVICE_MAX_CONNECTIONS=1
export VLLM_ATTENTION_BACKEND=FLASH_ATTN
n=2
PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1 nohup python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=$n > run.log 2>&1 &
wait
