#!/usr/bin/env bash
# reads: trainer.nnodes=2 data.train_batch_size=512
# plan: gpus=16 training=t1p1d16
CMD="python3 -m verl.trainer.main_ppo"
CMD+=" algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"
CMD="$CMD trainer.nnodes=2"
CMD="${CMD} data.train_batch_size=512"
echo "$CMD"
eval "$CMD"
