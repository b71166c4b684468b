#!/usr/bin/env bash
# reads: trainer.nnodes=2 actor_rollout_ref.rollout.n=8
# plan: gpus=16 training=t1p1d16
mapfile -t overrides <<'EOF'
trainer.nnodes=2
actor_rollout_ref.rollout.n=8
EOF
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "${overrides[@]}"
