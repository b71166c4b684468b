#!/usr/bin/env bash
# reads: algorithm.adv_estimator=gae critic.model.path=Qwen/Qwen2.5-7B-Instruct
# plan: gpus=8 training=t1p1d8 critic=t1p1d8 roles=actor+critic
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_batch_size=1024 \
    data.max_prompt_length=1024 data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    critic.optim.lr=1e-5 critic.model.path=Qwen/Qwen2.5-7B-Instruct critic.ppo_micro_batch_size_per_gpu=32 \
    critic.model.enable_gradient_checkpointing=True algorithm.use_kl_in_reward=False trainer.critic_warmup=0
