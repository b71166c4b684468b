#!/usr/bin/env bash
# reads: trainer.nnodes=4 trainer.n_gpus_per_node=8
# env: SLURM_NNODES=4
# plan: gpus=32 training=t1p1d32
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
gpus=8
srun --overlap --nodes=1 --ntasks=1 bash -c "ulimit -n 65535; \
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    trainer.nnodes=$SLURM_NNODES trainer.n_gpus_per_node=$gpus"
