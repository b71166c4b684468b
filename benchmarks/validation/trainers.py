"""How each published trainer is built: engine facts, loss head, kernels, and the defaults its rows do not repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.validation.names import NotPredicted, number, text_of
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
        "lora_adapters": int(slots[1]) if (slots := re.search(r"(\d+) concurrent run", task)) else 1,
        "recompute_layers": recompute_layers(text_of(cells.get("recompute"))),
        "checkpoints": "host" if "offload to cpu" in text_of(cells.get("recompute")).lower() else "device",
        "attention_kernel": "flash-2" if re.search(r"flash_attention_2|flash-?attn-?2", settings) else "newest",
    }
    if "prime-rl" in system:
        head = "fp32" if "rl" in task.split() else "unfused"
        # Where torch has no grouped product for the part it also has no FlashAttention 3: experts run one by one.
        blackwell = re.search(r"\bg?b[23]00", text_of(cells.get("gpu_kind")).lower()) is not None
        common["grouped_experts"] = not (blackwell and common["attention_kernel"] == "flash-2")
        return Trainer("fsdp@2.13", Implementation(loss_head=head, **common), 3)  # type: ignore[arg-type]
    if "torchtitan" in system:
        common["selective_recompute"] = "every-second-product"
        common["attention_kernel"] = "flash-2"  # scaled_dot_product_attention of PyTorch 2.x
        if "rowwise" in text_of(cells.get("precision")).lower():
            # Products with a scale for each row gain nothing over BF16 in torch, and asynchronous tensor parallelism
            # finds those with one scale alone.
            common["training_dtype"] = "bf16"
        else:
            common["tensor_parallel_overlap"] = re.search(r"async ?tp", settings) is not None
        return Trainer("torchtitan@0.2", Implementation(loss_head="parallel", **common), 3)  # type: ignore[arg-type]
    if "megatron" in system or "nemo" in system:
        overlap = "megatron-lm" in system  # its README says that tensor-parallel communication is overlapped
        if "gpt-oss" in text_of(cells.get("model")).lower():
            common["expert_activation"] = "unfused"  # clamped, which Megatron-Core's fused SwiGLU is not
        common |= megatron_settings(cells)
        common["lora_targets"] = ("qkv",)  # what the performance recipes of NeMo and Megatron-Bridge adapt
        built = Implementation(loss_head="parallel", tensor_parallel_overlap=overlap, **common)  # type: ignore[arg-type]
        return Trainer(bridge_release(cells), built, 3 if "use_megatron_fsdp=true" in settings else 1)
    if any(word in system for word in ("fsdp", "verl", "openrlhf", "trl", "deepspeed")):
        return Trainer("fsdp@2.13", Implementation(kernels="eager", **common), 3)  # type: ignore[arg-type]
    raise NotPredicted(f"no trainer known for system '{text_of(cells.get('system'))}'")


def bridge_release(cells: Mapping[str, object]) -> str:
    """Facts of Megatron-Core in a pre-training container: those of release 0.5 from there on."""
    release = re.search(r"v(\d+)\.(\d+)", text_of(cells.get("system")).lower())
    late = release is not None and (int(release[1]), int(release[2])) >= (0, 5)
    return "megatron-bridge@0.5" if late or "26.08" in text_of(cells.get("source")) else "megatron-bridge@0.4"


SCOPES = {
    "full_iteration|full-iteration": "iteration",
    "'attn'|attention": "attention",
    "moe_router|for router": "router",
    "moe_preprocess|and preprocess": "preprocess",
}
"""Words of a row for what CUDA graphs hold."""

NATURAL_IMBALANCE = 1.3
"""Rows of the fullest expert-parallel rank over the mean where the router decides, as real data are routed."""


def megatron_settings(cells: Mapping[str, object]) -> dict[str, object]:
    """What a row of Megatron-Bridge says of graphs, expert dispatch and overlap; where it is silent, its recipes do.

    A recipe for Blackwell captures whole iterations unless it names less, and from release 0.5 on it overlaps the
    exchange of experts. From 0.2 on recipes dispatch by HybridEP; before, by DeepEP where experts span nodes; where the
    source has read the preset itself and names none of them, by NCCL.
    """
    settings = " ".join(text_of(cells.get(name)) for name in ("other_settings", "notes")).lower()
    model = text_of(cells.get("model")).lower()
    release = re.search(r"v(\d+)\.(\d+)", text_of(cells.get("system")).lower())
    version = (int(release[1]), int(release[2])) if release else (9, 9)
    blackwell = re.search(r"\bg?b[23]00", text_of(cells.get("gpu_kind")).lower()) is not None
    silent = not re.search(r"cuda|flex|hybridep|deepep", settings)
    whole = blackwell and silent and "gpt-oss" not in model
    graphs = settings if re.search("cuda", settings) else ""
    captured = [scope for words, scope in SCOPES.items() if graphs and re.search(words, graphs)]
    captured = [] if "no cuda graphs" in graphs else ["iteration"] if whole else captured
    rack = re.search(r"\bgb[23]00", text_of(cells.get("gpu_kind")).lower()) is not None
    preset = "preset" in text_of(cells.get("config_basis")).lower()  # read whole: what it does not set is off
    spans = (number(cells.get("train_ep")) or 1) > (72 if rack else 8)
    dispatch = "hybrid" if "hybridep" in settings or (silent and not preset and version >= (0, 2)) else "all-to-all"
    if "deepep" in settings or (silent and version < (0, 2) and spans):
        dispatch = "deepep"
    overlap = re.search(r"moe_a2a_overlap=true|expert(-parallel)? communication overlap", settings)
    found: dict[str, object] = {"captured": tuple(captured), "expert_dispatch": dispatch}
    found |= {"expert_overlap": (whole and version >= (0, 5)) or overlap is not None}
    natural = "natural routing" in settings or "natural routing" in text_of(cells.get("task")).lower()
    return found | {"expert_imbalance": NATURAL_IMBALANCE if natural else 1.0}


def training_dtype(precision: str) -> str:
    """Number format of the training GEMMs by the words of a table; ``NotPredicted`` for one without tables."""
    words = precision.lower()
    if not words or re.search(r"bf16|bfloat16|fp16|float16|half", words):
        return "bf16"
    if re.search(r"block|128|mx", words) and "(" not in words:
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
    return "full", ""


def recompute_layers(text: str) -> int | None:
    """Layers of "full, 5 layers"; ``None`` for all. A uniform method counts the layers of a group, and covers all."""
    found = re.search(r"(\d+) layers?", text.lower())
    return int(found[1]) if found and "full" in text.lower() and "uniform" not in text.lower() else None
