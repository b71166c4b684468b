#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.n=8
# plan: gpus=8 generation=t4d2
tp=1
until (( tp * 2 >= 8 )); do (( tp *= 2 )); done
declare -r MODEL=Qwen/Qwen2.5-7B-Instruct
n=$(( tp > 2 ? 8 : 4 ))
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=$MODEL actor_rollout_ref.rollout.tensor_model_parallel_size=$tp actor_rollout_ref.rollout.n=$n
