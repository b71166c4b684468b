"""Tensor parallelism of transformers' Llama, Qwen2 and Qwen3 decoders by DTensor: which module is cut how.

Queries, keys, values, gate and up by rows of their weights (whole heads), output and down projection by columns,
embedding and head by the vocabulary; norms and a score head are whole on every rank. What enters a block is made a
DTensor once, so that the gradients of all that reads it are summed in one all-reduce.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from executor.engines.fsdp.model import ScoredDecoder
    from executor.weights.architecture import Architecture


def cut_over(model: ScoredDecoder, mesh: DeviceMesh, arch: Architecture, *, sequence_parallel: bool) -> None:
    """Cut ``model`` over the ranks of the one-dimensional ``mesh``; weights stay what each rank had.

    ``sequence_parallel``: between blocks each rank has its share of the tokens, whose number the ranks divide.
    """
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    plan: dict[str, ParallelStyle] = {"model.embed_tokens": embedding}
    for layer in range(arch.num_layers):
        plan |= {f"model.layers.{layer}.{name}": style for name, style in _layer_plan(arch, between).items()}
    if sequence_parallel:
        plan["model.norm"] = SequenceParallel(use_local_output=True)
        plan["whole"] = PrepareModuleInput(
            input_layouts=between, desired_input_layouts=Replicate(), use_local_output=True
        )
    if not arch.has_score:
        plan["lm_head"] = ColwiseParallel()
    parallelize_module(model, mesh, plan, src_data_rank=None)
    model.tie()


def _layer_plan(arch: Architecture, between: Placement) -> dict[str, ParallelStyle]:
    whole = Replicate()
    plan: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between}, desired_input_kwarg_layouts={"hidden_states": whole}
        ),
        "self_attn.o_proj": RowwiseParallel(output_layouts=between),
        "mlp": PrepareModuleInput(input_layouts=between, desired_input_layouts=whole),
        "mlp.down_proj": RowwiseParallel(output_layouts=between),
    }
    if between != whole:
        plan |= {f"{at}_layernorm": SequenceParallel(use_local_output=True) for at in ("input", "post_attention")}
    plan |= {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    if arch.qk_norm:  # one weight for all heads, of which a rank has some: its gradients add up over ranks
        plan |= {f"self_attn.{name}_norm": SequenceParallel(sequence_dim=2, use_local_output=True) for name in "qk"}
    return plan
