"""How each published trainer is built: engine facts, loss head, kernels, and the defaults its rows do not repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.validation.names import NotPredicted, text_of
from simulator.facts import Implementation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.plan.plan import Recompute


@dataclass(frozen=True)
class Trainer:
    """A trainer: its engine, how it is built, its ZeRO stage, and whether it keeps FP32 master weights sharded."""

    engine: str
    implementation: Implementation
    zero_stage: int


def trainer_of(cells: Mapping[str, object]) -> Trainer:
    """The trainer of a row of ``training.csv``; ``NotPredicted`` for a system whose build is not known."""
    system, task = text_of(cells.get("system")).lower(), text_of(cells.get("task")).lower()
    settings = text_of(cells.get("other_settings")).lower()
    common = {
        "training_dtype": training_dtype(text_of(cells.get("precision"))),
        "lora_rank": lora_rank(task),
        "attention_kernel": "flash-2" if re.search(r"flash_attention_2|flash-?attn-?2", settings) else "newest",
    }
    if "prime-rl" in system:
        head = "fp32" if "rl" in task.split() else "unfused"
        return Trainer("fsdp@2.13", Implementation(loss_head=head, **common), 3)  # type: ignore[arg-type]
    if "torchtitan" in system:
        common["attention_kernel"] = "flash-2"  # scaled_dot_product_attention of PyTorch 2.x
        return Trainer("fsdp@2.13", Implementation(loss_head="parallel", **common), 3)  # type: ignore[arg-type]
    if "megatron" in system or "nemo" in system:
        overlap = "megatron-lm" in system  # its README says that tensor-parallel communication is overlapped
        built = Implementation(loss_head="parallel", tensor_parallel_overlap=overlap, **common)  # type: ignore[arg-type]
        return Trainer("megatron-core@0.16", built, 1)
    if any(word in system for word in ("fsdp", "verl", "openrlhf", "trl", "deepspeed")):
        return Trainer("fsdp@2.13", Implementation(kernels="eager", **common), 3)  # type: ignore[arg-type]
    raise NotPredicted(f"no trainer known for system '{text_of(cells.get('system'))}'")


def training_dtype(precision: str) -> str:
    """Number format of the training GEMMs by the words of a table; ``NotPredicted`` for one without tables."""
    words = precision.lower()
    if not words or re.search(r"bf16|bfloat16|fp16|float16|half", words):
        return "bf16"
    if re.search(r"block|128", words):
        return "fp8_block"
    if re.search(r"fp8|float8|mxfp8", words):
        return "fp8"
    raise NotPredicted(f"no training GEMM tables for precision '{precision}'")


def lora_rank(task: str) -> int:
    """Rank of "LoRA r=16"; 16 where a LoRA row does not give it, 0 for full training."""
    if "lora" not in task.lower():
        return 0
    found = re.search(r"r(?:ank)?\s*=\s*(\d+)", task.lower())
    return int(found.group(1)) if found else 16


def recompute_of(text: str) -> tuple[Recompute, str]:
    """``(level, assumption)`` of a recompute cell."""
    words = text.lower()
    if not words:
        return "none", "recompute not stated: none assumed"
    if words.startswith(("none", "off", "false", "no")):
        return "none", ""
    if "select" in words:
        return "selective", ""
    if "offload" in words:
        return "full", "activation offload priced as full recomputation"
    return "full", ""
