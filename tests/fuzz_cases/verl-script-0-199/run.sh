#!/bin/bash
set -x
NNODES=${NNODES:-2}
export ACTOR=Qwen/Qwen2.5-7B-Instruct
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 \
    data.max_response_length=1024 actor_rollout_ref.model.path=$ACTOR \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=18446744073709551616 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.n_gpus_per_node=8 trainer.nnodes=$NNODES "$@"
