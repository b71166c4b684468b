#!/usr/bin/env bash
# reads: trainer.nnodes=2 trainer.n_gpus_per_node=4 actor_rollout_ref.rollout.tensor_model_parallel_size=2
# plan: gpus=8 training=t1p1d8 generation=t2d4
shape="2x4"
IFS=x read -r nodes gpus <<< "$shape"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    trainer.nnodes=$nodes trainer.n_gpus_per_node=$gpus actor_rollout_ref.rollout.tensor_model_parallel_size=$((gpus / nodes))
