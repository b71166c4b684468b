#!/usr/bin/env bash
# refused: trainer.nnodes=\$\{WORLD_NODES\}: WORLD_NODES is known only where the script runs.*--env WORLD_NODES=VALUE
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=${WORLD_NODES}
