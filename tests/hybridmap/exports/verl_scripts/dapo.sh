#!/usr/bin/env bash
# reads: algorithm.filter_groups.enable=True actor_rollout_ref.actor.clip_ratio_high=0.28 data.max_response_length=20480
# plan: gpus=128 training=t1p1d32c4 budget=22528
set -euxo pipefail
sp_size=4
max_prompt_length=$((1024 * 2)); max_response_length=$((1024 * 20))
enable_overlong_buffer=True; overlong_buffer_len=$((1024 * 4))
train_prompt_bsz=512; n_resp_per_prompt=16; train_prompt_mini_bsz=32
use_dynamic_bsz=True
offload=True
infer_ppo_max_token_len=$((max_prompt_length + max_response_length))
python3 -m recipe.dapo.main_dapo data.train_batch_size=${train_prompt_bsz} \
    data.gen_batch_size=$((train_prompt_bsz * 3)) data.max_prompt_length=${max_prompt_length} \
    data.max_response_length=${max_response_length} actor_rollout_ref.rollout.n=${n_resp_per_prompt} \
    algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.use_dynamic_bsz=${use_dynamic_bsz} \
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=${use_dynamic_bsz} actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=${use_dynamic_bsz} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${infer_ppo_max_token_len} \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-32B actor_rollout_ref.actor.ppo_mini_batch_size=${train_prompt_mini_bsz} \
    actor_rollout_ref.actor.fsdp_config.param_offload=${offload} actor_rollout_ref.actor.fsdp_config.optimizer_offload=${offload} \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp_size} actor_rollout_ref.actor.fsdp_config.fsdp_size=-1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.80 actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.max_num_batched_tokens=$((max_prompt_length + max_response_length)) \
    reward_model.reward_manager=dapo reward_model.overlong_buffer.len=${overlong_buffer_len} \
    trainer.n_gpus_per_node=8 trainer.nnodes=16
