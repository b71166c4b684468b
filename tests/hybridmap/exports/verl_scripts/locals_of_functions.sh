#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=8 data.train_batch_size=256 trainer.nnodes=1
# plan: gpus=8 training=t1p1d8
n=8
batch=1024
nodes=1
scale() {
    local n=$1 half
    declare nodes=16
    half=$((batch / 2))
    batch=$((half / n))
}
scale 2
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=$n data.train_batch_size=$batch trainer.nnodes=$nodes actor_rollout_ref.actor.ppo_mini_batch_size=${half:-128}
