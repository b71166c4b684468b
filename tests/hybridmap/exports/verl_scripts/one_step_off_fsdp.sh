#!/usr/bin/env bash
# reads: rollout.nnodes=1 rollout.n_gpus_per_node=4 trainer.n_gpus_per_node=4 algorithm.rollout_correction.bypass_mode=True
# plan: gpus=8 training=t1p1d4 generation=t2d2 schedule=one-step-off
NGPUS_PER_NODE=8
n_gpus_rollout=4
n_gpus_training=$((NGPUS_PER_NODE - n_gpus_rollout))
python3 -m verl.experimental.one_step_off_policy.main_ppo \
    --config-path=config --config-name='one_step_off_ppo_trainer.yaml' \
    algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.load_format=safetensors \
    trainer.nnodes=1 trainer.n_gpus_per_node="${n_gpus_training}" \
    rollout.nnodes=1 rollout.n_gpus_per_node="${n_gpus_rollout}"
