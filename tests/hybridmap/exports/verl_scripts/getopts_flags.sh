#!/usr/bin/env bash
# reads: trainer.nnodes=2 actor_rollout_ref.rollout.n=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct
# plan: gpus=16 training=t1p1d16
NNODES=2
N=4
MODEL=Qwen/Qwen2.5-7B-Instruct
usage() { echo "$0 [-n NODES] [-r SAMPLES] [-m MODEL]" >&2; exit 1; }
while getopts "n:r:m:h" opt; do
    case $opt in
        n) NNODES=$OPTARG ;;
        r) N=$OPTARG ;;
        m) MODEL="$OPTARG" ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ "$N" -eq 4 ] && N=8
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path="$MODEL" trainer.nnodes=$NNODES actor_rollout_ref.rollout.n=$N "$@"
