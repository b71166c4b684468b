#!/usr/bin/env bash
# refused: which variable out stands for depends on WHICH
add() { local -n out=$1; out+=("actor_rollout_ref.rollout.n=8"); }
add "$WHICH"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "${args[@]}"
