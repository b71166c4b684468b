"""Adapters in vLLM: one slot that every request reads, whose tensors the transition writes like any other weight."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.weights.adapters import write_adapters
from executor.weights.architecture import is_adapter
from profiles.errors import InputError

if TYPE_CHECKING:
    import torch

    from executor.weights.architecture import Adapters, Architecture

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for; a lower one leaves the rest of its slot zero. Checked against vLLM 0.32."""
PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
"""vLLM's projections, and those of a checkpoint that lie in each."""
TARGETS = {"qkv": "qkv_proj", "output": "o_proj", "gate_up": "gate_up_proj", "down": "down_proj"}


def adapter_settings(adapters: Adapters) -> dict[str, Any]:
    """Arguments of ``LLM`` for one adapter; ``InputError`` where its rank is above vLLM's highest."""
    if adapters.rank > RANKS[-1]:
        raise InputError(f"adapters of rank {adapters.rank}: vLLM has room for {RANKS[-1]} at most")
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(rank for rank in RANKS if rank >= adapters.rank),
        "lora_target_modules": [TARGETS[target] for target in adapters.targets],
    }


def occupy_slot(llm: Any, arch: Architecture, adapters: Adapters, base: str) -> Any:
    """Put an adapter of zeros into the slot, which then stays; returns the request that names it."""
    import torch
    from vllm.lora.request import LoRARequest

    zeros = {name: torch.zeros(tensor.shape) for name, tensor in arch.tensors().items() if is_adapter(name)}
    with tempfile.TemporaryDirectory() as folder:
        write_adapters(Path(folder), base, adapters, zeros)
        request = LoRARequest("policy", 1, folder)
        llm.llm_engine.add_lora(request)
    return request


def adapter_tensors(model: torch.nn.Module, adapters: Adapters) -> dict[str, torch.Tensor]:
    """Both factors of each projection, as far as this rank holds them, by names of a checkpoint: views of the slot."""
    found = {}
    for name, module in model.named_modules():
        at, _, kind = name.rpartition(".")
        for i, part in enumerate(PARTS.get(kind, ()) if hasattr(module, "lora_a_stacked") else ()):
            found[f"{at}.{part}.lora_A.weight"] = module.lora_a_stacked[i][0, 0, : adapters.rank]
            found[f"{at}.{part}.lora_B.weight"] = module.lora_b_stacked[i][0, 0, :, : adapters.rank]
    return found


def clear_slot(tensors: dict[str, torch.Tensor]) -> None:
    """Zero the whole slot, also beyond the adapter's rank, where nobody writes and kernels read."""
    for name, tensor in tensors.items():
        if is_adapter(name):
            tensor.untyped_storage().fill_(0)  # type: ignore[attr-defined]


def scale_slot(tensors: dict[str, torch.Tensor], scale: float) -> None:
    """What vLLM does when it reads an adapter from a file: its kernels know no scale."""
    for name, tensor in tensors.items():
        if name.endswith(".lora_B.weight"):
            tensor.mul_(scale)
