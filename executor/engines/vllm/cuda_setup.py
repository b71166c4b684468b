"""What vLLM is told where CUDA exists: ways that need more than this rank's own GPU, or other weights, are left out.

A rank sees its own GPU alone. vLLM looks its neighbours up among those that it sees, for its own all-reduce, torch's
symmetric memory and FlashInfer's, also where that one is fused with a norm. NCCL finds them by itself, so it is NCCL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.weights.architecture import Architecture
    from simulator.plan.groups import Degrees

CUDA_ENVIRONMENT = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
"""Read by vLLM 0.32 when it makes its groups; ``disable_custom_all_reduce`` leaves these two alone."""


def cuda_settings(arch: Architecture, degrees: Degrees) -> dict[str, Any]:
    """Arguments of ``LLM`` where CUDA exists."""
    found: dict[str, Any] = {"enable_sleep_mode": True}
    if degrees.tg > 1:
        found["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
    if arch.num_experts:  # FlashInfer's kernels, the first choice on Blackwell, read weights in an order of their own
        found["moe_backend"] = "triton"
    return found
