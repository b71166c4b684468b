#!/usr/bin/env bash
# reads: actor_rollout_ref.model.lora_rank=32
# plan: gpus=8 lora=32
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-3B actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=32 \
    actor_rollout_ref.model.target_modules=all-linear actor_rollout_ref.rollout.load_format=safetensors actor_rollout_ref.rollout.layered_summon=True
