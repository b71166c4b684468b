#!/usr/bin/env bash
# refused: trainer.n_gpus_per_node=.*nvidia-smi.*is known only where the script runs.*write the value
gpus=$(nvidia-smi --list-gpus | wc -l)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.n_gpus_per_node=$gpus
