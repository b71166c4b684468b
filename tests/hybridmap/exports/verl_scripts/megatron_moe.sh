#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 actor_rollout_ref.actor.megatron.param_offload=True actor_rollout_ref.rollout.tensor_model_parallel_size=4
# plan: gpus=32 training=t2p2d8e8 recompute=selective budget=16384
ENGINE=(model_engine=megatron)
EP=8 ETP=1
for what in param optimizer grad; do
    ENGINE+=(actor_rollout_ref.actor.megatron.${what}_offload=True)
done
ENGINE+=(
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype=fp32
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=selective
)
python3 -m verl.trainer.main_ppo "${ENGINE[@]}" algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \
    data.max_prompt_length=2048 data.max_response_length=8192 trainer.nnodes=4 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 actor_rollout_ref.rollout.tensor_model_parallel_size=4
