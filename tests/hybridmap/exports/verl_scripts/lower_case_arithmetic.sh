#!/usr/bin/env bash
# reads: data.max_prompt_length=2048 data.max_response_length=8192 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480 actor_rollout_ref.rollout.n=16
# plan: gpus=32 training=t1p1d32 budget=20480
nnodes=4
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
n_resp=$(( 1 << 4 ))
actor_tokens=$(((max_prompt_length + max_response_length) * 2))
infer_tokens=$((actor_tokens * 3 / 2))
python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-14B \
  data.max_prompt_length=${max_prompt_length} data.max_response_length=${max_response_length} \
  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${actor_tokens} \
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=${infer_tokens} actor_rollout_ref.rollout.n=${n_resp} trainer.nnodes=${nnodes}
