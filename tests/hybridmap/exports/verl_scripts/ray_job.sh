#!/usr/bin/env bash
# reads: trainer.nnodes=16 actor_rollout_ref.rollout.n=16
# plan: gpus=128 training=t1p1d128
RAY_ADDRESS=${RAY_ADDRESS:-"http://localhost:8265"}
WORKING_DIR=${WORKING_DIR:-"${PWD}"}
NNODES=${NNODES:-16}
RUNTIME_ENV_JSON=$(cat <<EOF
{"env_vars": {"NCCL_DEBUG": "WARN"}}
EOF
)
ray job submit --no-wait --address "$RAY_ADDRESS" --runtime-env-json="$RUNTIME_ENV_JSON" \
    --working-dir "${WORKING_DIR}" \
    -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes="${NNODES}" actor_rollout_ref.rollout.n=16
