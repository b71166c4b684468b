#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=2 model_engine=megatron
# plan: gpus=32 training=t4p2d2c2 recompute=full reference=t4p2d2c2
train_tp=4; train_pp=2; train_cp=2; vpp=2
python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-32B actor_rollout_ref.actor.use_kl_loss=True trainer.nnodes=4 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$train_tp \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=$train_pp \
    actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=$vpp \
    actor_rollout_ref.actor.megatron.context_parallel_size=$train_cp \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
