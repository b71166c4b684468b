#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.device=cuda
# plan: gpus=8 generation=t2d4
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
case "$DEVICE" in gpu) tp=2 ;; npu) tp=8; EXTRA=(trainer.device=npu) ;; esac
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.tensor_model_parallel_size=$tp "${EXTRA[@]:-trainer.device=cuda}"
