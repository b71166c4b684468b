#!/usr/bin/env bash
# refused: it starts /tmp/inner_.*: import that script
n=8
cat > /tmp/inner_$$.sh <<EOF
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=$n trainer.nnodes=1
EOF
bash /tmp/inner_$$.sh
