#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=2
# plan: gpus=8 training=t4p2d1 budget=16384
# note: with micro-batches of tokens, priced as a pipeline of whole stages
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen3-8B model_engine=megatron \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=2 \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
