#!/bin/bash
# env: SLURM_NNODES=2 SLURM_GPUS_ON_NODE=8
# reads: trainer.nnodes=2 trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.max_num_seqs=512
# plan: gpus=16 training=t1p1d16
#SBATCH --nodes=2
#SBATCH --gres=gpu:8
export NNODES=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
export GPUS=${SLURM_GPUS_ON_NODE:?no GPUs}
let "seqs = 64 * GPUS"
set -x
time python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.nnodes=$NNODES trainer.n_gpus_per_node=$GPUS actor_rollout_ref.rollout.max_num_seqs=$seqs
