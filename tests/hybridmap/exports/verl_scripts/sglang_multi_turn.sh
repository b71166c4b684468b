#!/usr/bin/env bash
# reads: actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.multi_turn.enable=True
# plan: gpus=8 training=t1p1d8 generation=t2d4
# note: multi_turn
PROJECT_DIR="$(pwd)"
CONFIG_PATH="$PROJECT_DIR/examples/sglang_multiturn/config"
function now() { date '+%d-%H-%M'; }
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.multi_turn.enable=True \
    trainer.experiment_name="qwen-$(now)" actor_rollout_ref.rollout.multi_turn.tool_config_path="$CONFIG_PATH/tool.yaml"
