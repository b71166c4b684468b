#!/usr/bin/env bash
# refused: --config-name=my_run is a configuration of your own.*config.yaml that Hydra wrote
python3 -m verl.trainer.main_ppo --config-path="$PWD/config" --config-name=my_run algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct
