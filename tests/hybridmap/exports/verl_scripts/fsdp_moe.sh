#!/usr/bin/env bash
# reads: actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=4
# plan: gpus=16 training=t1p1d4c4
sp=4
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.actor.strategy=fsdp2 trainer.nnodes=2 \
    actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=$sp actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True actor_rollout_ref.rollout.tensor_model_parallel_size=4
