#!/usr/bin/env bash
# reads: model_engine=megatron rollout.nnodes=2 trainer.nnodes=2
# plan: gpus=32 training=t4p2d2 generation=t4d4 schedule=one-step-off
python3 -m recipe.one_step_off_policy.main_ppo --config-name='one_step_off_ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-32B actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
    trainer.nnodes=2 rollout.nnodes=2
