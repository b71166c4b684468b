#!/usr/bin/env bash
# refused: starts verl.trainer.sft_trainer, whose schedule and keys are not read
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer data.train_batch_size=256 \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B
