#!/usr/bin/env bash
# reads: actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=2 actor_rollout_ref.rollout.n=3 data.train_batch_size=256
# plan: gpus=16 training=t1p1d16
full=Qwen/Qwen2.5-7B-Instruct:main
model=${full%%:*}
short=${model##*/}
lower=${short,,}
hosts="node-a,node-b"
IFS=, read -r -a list <<< "$hosts"
name="${short//./_}-${lower:0:4}"
batch=x256
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path="$model" trainer.experiment_name="$name" \
    trainer.nnodes=${#list[@]} actor_rollout_ref.rollout.n=${UNSET_N:-3} data.train_batch_size=${batch#x}
