#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=8 data.max_response_length=8192 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=18432
# plan: gpus=8 training=t1p1d8
k() { echo $(($1 * 1024)); }
max_prompt=$(k 1)
max_response=`k 8`
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=8 data.max_prompt_length=$max_prompt data.max_response_length=$max_response \
   actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(( (max_prompt + max_response) * 2 ))
