#!/usr/bin/env bash
# reads: async_training.staleness_threshold=0.5 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.nnodes=2
# plan: gpus=32 training=t1p1d16 generation=t1d16 schedule=async steps=2 prompts=512
train_prompt_bsz=0; gen_prompt_bsz=1; n_resp_per_prompt=16; train_prompt_mini_bsz=32
total_rollout_steps=$(((512*400)))
staleness_threshold=0.5; trigger_parameter_sync_step=4; require_batches=4; partial_rollout=True
python -m verl.experimental.fully_async_policy.fully_async_main \
    data.train_batch_size=${train_prompt_bsz} data.gen_batch_size=${gen_prompt_bsz} \
    algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.rollout.n=${n_resp_per_prompt} \
    data.max_prompt_length=2048 data.max_response_length=8192 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480 actor_rollout_ref.actor.ppo_mini_batch_size=${train_prompt_mini_bsz} \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.calculate_log_probs=True \
    trainer.nnodes=2 trainer.n_gpus_per_node=8 rollout.nnodes=2 rollout.n_gpus_per_node=8 \
    rollout.total_rollout_steps="${total_rollout_steps}" \
    async_training.staleness_threshold="${staleness_threshold}" \
    async_training.trigger_parameter_sync_step="${trigger_parameter_sync_step}" \
    async_training.require_batches="${require_batches}" async_training.partial_rollout="${partial_rollout}"
