"""Megatron's data parallelism, gradient buffers and (distributed) Adam around model chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

    from executor.engines.torch_native.engine import ModelSpec
    from simulator.groups import Degrees


def wrap(
    modules: list[Any], config: TransformerConfig, spec: ModelSpec, degrees: Degrees
) -> tuple[list[DistributedDataParallel], Any]:
    """Chunks in Megatron's DDP, and their optimizer; ``zero_stage`` 1 cuts its states over data-parallel ranks.

    Gradients are summed, not averaged: the losses are shares of a global mean already.
    """
    assert spec.optimizer is not None
    distributed = spec.zero_stage >= 1 and degrees.d > 1
    how = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=distributed
    )
    chunks = [DistributedDataParallel(config, how, module, disable_bucketing=i > 0) for i, module in enumerate(modules)]
    given = spec.optimizer
    settings = OptimizerConfig(
        optimizer="adam", lr=given.learning_rate, min_lr=given.learning_rate, weight_decay=given.weight_decay,
        adam_beta1=given.betas[0], adam_beta2=given.betas[1], adam_eps=given.eps, clip_grad=given.max_grad_norm,
        bf16=config.params_dtype == torch.bfloat16, params_dtype=config.params_dtype,
        use_distributed_optimizer=distributed,
    )  # fmt: skip
    return chunks, get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)
