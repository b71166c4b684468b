"""What vLLM needs to be told on a machine without CUDA; nothing here runs where CUDA exists."""

from __future__ import annotations

import os

import torch

CPU_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def prepare_environment() -> None:
    """Before vllm is imported: no compiler, no thread binding, one thread (more slow decoding down many times)."""
    if torch.cuda.is_available():
        return
    for name, value in CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from torch._dynamo import config

    config.disable = True


def patch_vllm() -> None:
    """Plain weights in place of oneDNN's packed ones, so that shards can be written; gloo in place of shared memory.

    The shared memory's name has no run id: an actor that was killed leaves it behind, and the next engine fails.
    """
    if torch.cuda.is_available():
        return
    import vllm._custom_ops as custom_ops
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    custom_ops._supports_onednn = False  # noqa: SLF001
    setattr(CpuCommunicator, "_all_group_ranks_share_shm_group_name", lambda _self: False)  # noqa: B010
