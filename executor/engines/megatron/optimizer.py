"""Megatron's data parallelism, gradient buffers and (distributed) Adam around model chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.utils import local_multi_tensor_l2_norm

from executor.engines.layout_state import MOMENTS, Held

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from megatron.core.transformer.transformer_config import TransformerConfig

    from executor.engines.model_spec import ModelSpec
    from simulator.plan.groups import Degrees


def cuts_states(spec: ModelSpec, degrees: Degrees) -> bool:
    """Whether ranks with equal weights, data and context parallel, divide the optimizer's states among them."""
    return spec.zero_stage >= 1 and degrees.d * degrees.c > 1


def wrap(
    modules: list[Any], config: TransformerConfig, spec: ModelSpec, degrees: Degrees
) -> tuple[list[DistributedDataParallel], Any]:
    """Chunks in Megatron's DDP, and their optimizer; ``zero_stage`` 1 cuts its states over data-parallel ranks.

    Gradients are summed, not averaged: the losses are shares of a global mean already.
    """
    assert spec.optimizer is not None
    _norms_without_waiting()
    distributed = cuts_states(spec, degrees)
    how = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=distributed
    )
    chunks = [DistributedDataParallel(config, how, module, disable_bucketing=i > 0) for i, module in enumerate(modules)]
    given = spec.optimizer
    settings = OptimizerConfig(
        optimizer="adam",
        lr=given.learning_rate,
        min_lr=given.learning_rate,
        weight_decay=given.weight_decay,
        adam_beta1=given.betas[0],
        adam_beta2=given.betas[1],
        adam_eps=given.eps,
        clip_grad=given.max_grad_norm,
        bf16=config.params_dtype == torch.bfloat16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=distributed,
    )
    return chunks, get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)


def _norms_without_waiting() -> None:
    """Without Transformer Engine and Apex 0.16.1 reads every tensor's norm on the host: one wait for each parameter."""
    if clip_grads.l2_norm_impl is local_multi_tensor_l2_norm:
        vars(clip_grads).update(l2_norm_impl=_norm, multi_tensor_scale_impl=_scale)


def _norm(_chunk: int, _overflow: Any, lists: list[list[torch.Tensor]], _each: bool) -> tuple[torch.Tensor, None]:
    """The norm ``[1]`` of all tensors of all lists, on their device."""
    return torch.stack([norm for tensors in lists for norm in torch._foreach_norm(tensors)]).norm().view(1), None  # noqa: SLF001


def _scale(_chunk: int, _overflow: Any, lists: list[list[torch.Tensor]], factor: float) -> None:
    """The second list becomes the first one times a factor."""
    torch._foreach_copy_(lists[1], torch._foreach_mul(lists[0], factor))  # noqa: SLF001


def held_states(optimizer: Any, names: Mapping[Any, str]) -> list[Held]:
    """What this rank's optimizer holds, by the names of its parameters: of each a flat range if states are cut."""
    found = []
    for inner in _parts_of(optimizer):
        for parameter, main, start in _mains(inner):
            state = inner.optimizer.state.get(main, {})
            moments = {f"optimizer.{name}.": state[name].view(-1) for name in MOMENTS if name in state}
            found.append(Held(names[parameter], start, {"": main.data.view(-1), **moments}))
    return found


def expect_states(optimizer: Any, num_steps: int) -> None:
    """Have room for the states after ``num_steps`` steps. Adam counts steps by parameter in torch, by group in Apex."""
    for inner in _parts_of(optimizer):
        inner.optimizer.state.clear()
        for group in inner.optimizer.param_groups if num_steps else ():
            for main in group["params"]:
                zeros = {name: torch.zeros_like(main.data) for name in MOMENTS}
                inner.optimizer.state[main] = zeros
                if isinstance(inner.optimizer, torch.optim.Adam):
                    zeros["step"] = torch.tensor(float(num_steps))
            if not isinstance(inner.optimizer, torch.optim.Adam):
                group["step"] = num_steps


def publish_masters(optimizer: Any, chunks: Sequence[Any]) -> None:
    """Master weights into the parameters, everywhere, as after a step."""
    distributed = False
    for inner in _parts_of(optimizer):
        if hasattr(inner, "_copy_main_params_to_model_params"):
            inner._copy_main_params_to_model_params()  # noqa: SLF001
        distributed = distributed or isinstance(inner, DistributedOptimizer)
    for chunk in chunks if distributed else ():
        chunk.start_param_sync(force_sync=True)


def _parts_of(optimizer: Any) -> list[Any]:
    """Dense and expert parameters have optimizers of their own; a rank may have none of one kind."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part for part in parts if not part.is_stub_optimizer]


def _mains(inner: Any) -> Iterator[tuple[Any, Any, int]]:
    """Each parameter, its master weights on this rank, and where in the flat parameter they begin."""
    if isinstance(inner, DistributedOptimizer):
        for parameter, (group, order) in inner.model_param_group_index_map.items():
            start = inner._get_model_param_range_map(parameter)["param"].start  # noqa: SLF001
            yield parameter, inner.optimizer.param_groups[group]["params"][order], start
    elif isinstance(inner, Float16OptimizerWithFloat16Params):
        for parameters, mains in zip(inner.float16_groups, inner.fp32_from_float16_groups, strict=True):
            yield from ((parameter, main, 0) for parameter, main in zip(parameters, mains, strict=True))
        yield from ((parameter, parameter, 0) for group in inner.fp32_from_fp32_groups for parameter in group)
    else:
        yield from ((p, p, 0) for group in inner.optimizer.param_groups for p in group["params"])


def state_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Masters and moments of Megatron's optimizer; in fp32 its masters are the parameters themselves."""
    for one in _parts_of(optimizer):
        for group in one.optimizer.param_groups:
            for master in group["params"]:
                yield master.data
                state = one.optimizer.state.get(master, {}).values()
                yield from (found for found in state if isinstance(found, torch.Tensor) and found.dim())
