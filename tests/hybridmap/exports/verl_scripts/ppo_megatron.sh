#!/usr/bin/env bash
# reads: model_engine=megatron critic.megatron.tensor_model_parallel_size=4
# plan: gpus=16 training=t4p1d4 critic=t4p1d4 roles=actor+critic
tp=4
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer algorithm.adv_estimator=gae \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B critic.model.path=Qwen/Qwen3-8B trainer.nnodes=2 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 critic.ppo_infer_max_token_len_per_gpu=8192 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$tp critic.megatron.tensor_model_parallel_size=$tp
