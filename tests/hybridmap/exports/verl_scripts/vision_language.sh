#!/usr/bin/env bash
# refused: data.image_key=images with .*Qwen2.5-VL-7B-Instruct, a vision-language model, is not read.*--model actor=
ENGINE=${1:-vllm}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct data.image_key=images \
    data.train_files=$HOME/data/geo3k/train.parquet actor_rollout_ref.rollout.name=$ENGINE trainer.nnodes=1
