#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.nnodes=2 data.max_response_length=4096
# env: NNODES=2
# plan: gpus=16 training=t1p1d16 generation=t4d4
set -xeuo pipefail
NNODES=${NNODES:-1}
: "${ROLLOUT_TP:=4}"
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
RESPONSE=${RESPONSE:-4096}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path="${MODEL_PATH}" trainer.nnodes="$NNODES" \
    data.max_response_length=$RESPONSE actor_rollout_ref.rollout.tensor_model_parallel_size="${ROLLOUT_TP}" "$@"
