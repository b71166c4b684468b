"""Megatron-Core 0.16 on a machine without CUDA: its CUDA calls answered by the CPU, inside one ``with`` block.

Where CUDA exists it mends two slips of 0.16.1 and nothing else. Only this file knows of it. Redirected:
``torch.cuda.current_device`` and friends, ``device="cuda"``, ``tensor.cuda()``, and the type names that the optimizer
compares with. The function mode belongs to the thread that enters it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator

STAND_IN = torch.device("cpu")
"""What stands for CUDA's device; a test puts a device without values in its place."""
_FIXED = False


class _CudaToCpu(TorchFunctionMode):
    """Rewrites what names CUDA in the arguments of torch functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(STAND_IN)
        if _names_cuda(kwargs.get("device")):
            kwargs["device"] = STAND_IN
        if func is torch.Tensor.type and len(args) == 1:  # the optimizer compares with 'torch.cuda.FloatTensor'
            return f"torch.cuda.{func(*args).split('.')[-1]}"
        return func(*args, **kwargs)


class _Stream:
    """What stands for a CUDA stream: everything is in order already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _other: Any) -> None:
        """Nothing to wait for."""

    wait_event = wait_stream

    def record_event(self, _event: Any = None) -> _Stream:
        """What can be waited for like a stream."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _synchronize() -> None:
    """The CPU is through with everything already."""


def _numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What of a tensor Megatron needs on the host, read as it would read one of a device."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return tensor.to("cpu").numpy() if as_numpy else tensor.to("cpu")


def _names_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")


@contextmanager
def cuda_calls_on_cpu() -> Iterator[None]:
    """Inside, CUDA calls of Megatron-Core land on the CPU; where CUDA exists only slips of 0.16 are mended."""
    _fix_0_16()
    if torch.cuda.is_available():
        yield
        return
    import megatron.core.tensor_parallel.random as megatron_random
    from megatron.core.transformer.moe import token_dispatcher

    stream: dict[str, Any] = {"Stream": _Stream, "current_stream": _Stream, "default_stream": _Stream}
    generator = torch.default_generator
    get = lambda *_, **__: generator.get_state()  # noqa: E731
    answers: dict[str, Any] = stream | {
        "current_device": lambda: STAND_IN,
        "synchronize": lambda *_, **__: _synchronize(),
        "manual_seed": generator.manual_seed,
        "stream": lambda _s: _Stream(),
        "get_rng_state": get,
        "set_rng_state": lambda state, *_, **__: generator.set_state(state),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(megatron_random, "_get_cuda_rng_state", get))
        setter = lambda state, *_, **__: generator.set_state(state)  # noqa: E731 - theirs is queued until CUDA starts
        stack.enter_context(patch.object(megatron_random, "_set_cuda_rng_state", setter))
        stack.enter_context(patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _numbers))
        stack.enter_context(_CudaToCpu())
        yield


def _fix_0_16() -> None:
    """Two slips of 0.16.1: a name of the router, and loading a distributed Adam that forgets its ``step``."""
    global _FIXED
    if _FIXED:
        return
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.transformer.moe import moe_utils

    vars(moe_utils).setdefault("te_general_gemm", None)  # without Transformer Engine 0.16.1 forgets to define it
    theirs = DistributedOptimizer._set_main_param_and_optimizer_states  # noqa: SLF001

    def keep_step(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" in state and "step" not in tensors:
            tensors = dict(tensors, step=state["step"])
        return theirs(self, model_param, tensors)

    DistributedOptimizer._set_main_param_and_optimizer_states = keep_step  # noqa: SLF001
    _FIXED = True
