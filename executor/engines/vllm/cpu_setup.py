"""What vLLM needs to be told on a machine without CUDA; nothing here runs where CUDA exists."""

from __future__ import annotations

import os

import torch

from profiles.errors import NotYetError

CPU_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def prepare_environment() -> None:
    """Before vllm is imported: no compiler, no thread binding, one thread (more slow decoding down many times)."""
    if torch.cuda.is_available():
        return
    for name, value in CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from torch._dynamo import config

    config.disable = True


def require_kernels(head_dim: int) -> None:
    """``NotYetError`` for heads that vLLM's attention on CPUs has no kernel for: its first batch fails on them."""
    if torch.cuda.is_available():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    able = CPUAttentionBackend.get_supported_head_sizes()
    if head_dim not in able:
        raise NotYetError(
            f"heads of {head_dim} cannot run on vLLM without a GPU, which has kernels for {', '.join(map(str, able))}; "
            "generate with torch-native (run.engines)"
        )


def patch_vllm() -> None:
    """Plain weights in place of oneDNN's packed ones, so that shards can be written; gloo in place of shared memory.

    The shared memory's name has no run id: an actor that was killed leaves it behind, and the next engine fails.
    Temperatures, top-p and top-k of drafted tokens are spread by torch: vLLM's own way fills a copy of integers, and
    tokens are then drawn by what happened to lie in memory.
    """
    if torch.cuda.is_available():
        return
    import vllm._custom_ops as custom_ops
    import vllm.v1.sample.rejection_sampler as rejection_sampler
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    custom_ops._supports_onednn = False  # noqa: SLF001
    _remember_packing()
    setattr(rejection_sampler, "expand_batch_to_tokens", spread_over_drafts)  # noqa: B010
    setattr(CpuCommunicator, "_all_group_ranks_share_shm_group_name", lambda _self: False)  # noqa: B010


def spread_over_drafts(
    values: torch.Tensor, ends: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """A value for each drafted token from one for each sequence, whose tokens end before ``ends`` of ``num_tokens``."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
    found = values.repeat_interleave(counts, output_size=num_tokens)
    return torch.where(found == replace_from, found.new_tensor(replace_to), found)


_PACKINGS: set[str] = set()
"""How this machine's kernels want the experts' weights; filled when a model with experts is made."""


def _remember_packing() -> None:
    import vllm.model_executor.layers.fused_moe.experts.cpu_moe as cpu_moe

    theirs = cpu_moe.cpu_prepack_moe_weight
    if getattr(theirs, "remembers", False):
        return

    def remembering(weight: torch.Tensor, isa: str) -> torch.Tensor:
        _PACKINGS.add(isa)
        packed: torch.Tensor = theirs(weight, isa)
        return packed

    remembering.remembers = True  # type: ignore[attr-defined]
    cpu_moe.cpu_prepack_moe_weight = remembering


def pack_experts(tensors: dict[str, torch.Tensor]) -> None:
    """Plain weights of experts into what the CPU's kernels read, in place; they have packed their own copies once."""
    if torch.cuda.is_available() or not _PACKINGS:
        return
    import vllm.model_executor.layers.fused_moe.experts.cpu_moe as cpu_moe

    (isa,) = _PACKINGS
    for name, tensor in tensors.items():
        if ".routed_experts." in name:
            tensor.copy_(cpu_moe.cpu_prepack_moe_weight(tensor, isa))
