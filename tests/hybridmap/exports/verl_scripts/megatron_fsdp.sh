#!/usr/bin/env bash
# refused: actor_rollout_ref.actor.megatron.use_megatron_fsdp=True is not read; model_engine=dp is FSDP that
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct model_engine=megatron actor_rollout_ref.actor.megatron.use_megatron_fsdp=True
