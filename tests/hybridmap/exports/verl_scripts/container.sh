#!/usr/bin/env bash
# reads: trainer.nnodes=1 actor_rollout_ref.rollout.n=7
# plan: gpus=8 training=t1p1d8
IMAGE=verlai/verl:app
docker run --rm --gpus all --shm-size=10g -v "$PWD:/work" "$IMAGE" \
    bash -c 'python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=7'
