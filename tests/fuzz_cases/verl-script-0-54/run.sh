#!/bin/bash
set -x
NNODES=${NNODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
eODES:-2}
export ACTOR=Qwen/Qwen2.5-7B-Instruct
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 \
    data.max_response_length=9223372036854775808 actor_rollout_ref.model.path=$ACTOR \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.x.y_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.n_gpus_per_node=9223372036854775807 trainer.nnodes=$NNODES "$@"
