#!/usr/bin/env bash
# reads: actor_rollout_ref.model.mtp.enable=True
# plan: gpus=8 training=t2p1d4
# note: the head that predicts further tokens has no price
set -xeuo pipefail
MTP=(
    actor_rollout_ref.model.mtp.enable=True
    actor_rollout_ref.model.mtp.enable_train=True
    actor_rollout_ref.model.mtp.mtp_loss_scaling_factor=0.1
    actor_rollout_ref.actor.router_replay.mode=disabled
)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path="${HOME}/models/DeepSeek-R1-Distill-Qwen-7B" \
    model_engine=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "${MTP[@]}" "$@"
