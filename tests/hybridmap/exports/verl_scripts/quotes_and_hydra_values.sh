#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=4 data.train_batch_size=256 actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=20000000000
# plan: gpus=8 training=t1p1d8
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    "data.train_files=['$HOME/a b.parquet', '$HOME/c.parquet']" \
    'trainer.logger=["console"]' \
    +actor_rollout_ref.rollout.engine_kwargs.vllm='{kv_cache_memory_bytes:20000000000,enable_chunked_prefill:true}' \
    data.system_prompt=$'one\ntwo' \
    ~data.no_such_key= \
    actor_rollout_ref.rollout.n="4" actor_rollout_ref.actor.ppo_mini_batch_size='${data.train_batch_size}' data.train_batch_size=1024 \
    data.train_batch_size=256
