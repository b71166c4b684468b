#!/usr/bin/env bash
# refused: expand to more than 1,048,576 characters
A=aaaaaaaaaaaaaaaa
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
A=$A$A
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.experiment_name=$A
