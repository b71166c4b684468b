#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
# plan: gpus=8 training=t1p1d4c2 reference=t1p1d4c2
# note: deprecated and still wins
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 actor_rollout_ref.ref.ulysses_sequence_parallel_size='${actor_rollout_ref.actor.ulysses_sequence_parallel_size}'
