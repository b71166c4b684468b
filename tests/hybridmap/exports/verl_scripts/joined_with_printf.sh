#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=8 data.train_files=['/data/a.parquet','/data/b.parquet']
# plan: gpus=8 training=t1p1d8
files=(/data/a.parquet /data/b.parquet)
printf -v listed "'%s'," "${files[@]}"
listed="[${listed%,}]"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=8 data.train_files="$listed"
