#!/usr/bin/env bash
# refused: trainer.device=npu is not read
export HCCL_CONNECT_TIMEOUT=1500
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.device=npu trainer.n_gpus_per_node=16
