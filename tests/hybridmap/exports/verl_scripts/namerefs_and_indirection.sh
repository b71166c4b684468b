#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=16 data.train_batch_size=512
# plan: gpus=8 training=t1p1d8
small_n=4 large_n=16 large_batch=512
size=large
which="${size}_n"
add() { local -n out=$1; shift; out+=("$@"); }
args=()
add args "actor_rollout_ref.rollout.n=${!which}"
which=${size}_batch
add args data.train_batch_size="${!which}"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "${args[@]}"
