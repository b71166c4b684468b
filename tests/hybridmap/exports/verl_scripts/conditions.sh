#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.use_kl_loss=False trainer.nnodes=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.85
# plan: gpus=8 training=t1p1d8
engine=vllm; kl=0.0; debug=""
if [[ "$engine" == "sglang" ]]; then
    util=0.6
elif [[ $engine == vl* && -z "$debug" ]]; then
    util=0.85
else
    util=0.5
fi
[[ $kl == 0.0 ]] && use_kl=False || use_kl=True
n=8
(( n > 4 )) && n=4
test -n "$debug" && n=1
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=$n actor_rollout_ref.actor.use_kl_loss=$use_kl \
    actor_rollout_ref.rollout.gpu_memory_utilization=$util
