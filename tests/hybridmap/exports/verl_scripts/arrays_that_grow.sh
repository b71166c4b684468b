#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.n=8 trainer.nnodes=2 actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
# plan: gpus=16 training=t1p1d16
offload=true
ARGS=(
    algorithm.adv_estimator=grpo   # an estimator
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct
    # actor_rollout_ref.rollout.n=99
    actor_rollout_ref.rollout.n=8
)
ARGS+=(actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4)
if [ "$offload" = true ]; then
    ARGS+=(
        actor_rollout_ref.actor.fsdp_config.param_offload=True
        actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
    )
fi
ARGS+=("trainer.nnodes=2")
echo "starting with ${#ARGS[@]} overrides"
python3 -m verl.trainer.main_ppo "${ARGS[@]}" "${@:2}"
