#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.ref.fsdp_config.param_offload=True trainer.nnodes=2
# plan: gpus=16 training=t1p1d16
extra=""
for place in actor_rollout_ref.actor actor_rollout_ref.ref; do
    extra="$extra $place.fsdp_config.param_offload=True"
done
nodes=0
for i in {1..2}; do nodes=$((nodes + 1)); done
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=$nodes $extra
