#!/usr/bin/env bash
# reads: model_engine=megatron actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
# plan: gpus=64 training=t2p2d8e8 generation=t8d4 schedule=async steps=1 prompts=128
python3 verl/experimental/fully_async_policy/fully_async_main.py --config-name=fully_async_ppo_megatron_trainer \
    algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.tensor_model_parallel_size=8 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12288 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1 \
    data.max_prompt_length=1024 data.max_response_length=4096 \
    trainer.nnodes=4 rollout.nnodes=4
