"""How each published trainer is built: engine facts, loss head, kernels, and the defaults its rows do not repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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


AUTOMODEL = r"auto-?model|dtensor"
OF_TORCH = r"fsdp|verl|openrlhf|\btrl\b|torch-?tune|axolotl|llama-?factory|hugging ?face|accelerate|llm-foundry|skyrl"
"""Systems that train Hugging Face's models, or torchtune's own, sharded by torch's FSDP."""


def zero_stage(words: str) -> Literal[1, 2, 3]:
    """Stage of "DeepSpeed ZeRO-2"; 3 where none is named, as recipes for large models have it."""
    found = re.search(r"(?:zero|stage)[- _]?([123])", words.lower())
    return {"1": 1, "2": 2}.get(found[1], 3) if found else 3  # type: ignore[return-value]


# Long by the systems that tables name: a rule for each.
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
    if re.search(AUTOMODEL, system):  # NeMo's, whose engine is torch's
        return Trainer("fsdp@2.13", Implementation(kernels="eager", **common), 3)  # type: ignore[arg-type]
    if "deepspeed" in system:
        built = Implementation(kernels="eager", **common)  # type: ignore[arg-type]
        return Trainer("deepspeed@0.19", built, zero_stage(system))
    if re.search(r"nemo[- ]?rl", system):
        return Trainer("megatron-core@0.16", Implementation(loss_head="unfused", **common), 1)  # type: ignore[arg-type]
    if re.search("megatron|nemo|primus", system):
        overlap = "megatron-lm" in system  # its README says that tensor-parallel communication is overlapped
        if "gpt-oss" in text_of(cells.get("model")).lower():
            common["expert_activation"] = "unfused"  # clamped, which Megatron-Core's fused SwiGLU is not
        common |= megatron_settings(cells)
        common["lora_targets"] = ("qkv",)  # what the performance recipes of NeMo and Megatron-Bridge adapt
        built = Implementation(loss_head="parallel", tensor_parallel_overlap=overlap, **common)  # type: ignore[arg-type]
        return Trainer(bridge_release(cells), built, 3 if "use_megatron_fsdp=true" in settings else 1)
    if re.search(OF_TORCH, system):
        compiled = "compile" in f"{system} {settings}" and "no compile" not in settings
        return Trainer("fsdp@2.13", Implementation(kernels="fused" if compiled else "eager", **common), 3)  # type: ignore[arg-type]
    raise NotPredicted(f"no trainer known for system '{text_of(cells.get('system'))}'")


CONTAINERS = {(25, 9): (0, 1), (25, 11): (0, 2), (26, 2): (0, 3), (26, 4): (0, 4), (26, 6): (0, 5), (26, 8): (0, 6)}
"""Release of Megatron-Bridge in a NeMo container, by year and month; the performance pages name both."""

BEFORE = (0, 0)
"""NeMo's own recipes and Megatron-LM's, which Megatron-Bridge's came from."""
UNKNOWN = (9, 9)
"""A row that tells neither release nor container: taken for the newest recipes."""


def bridge_version(cells: Mapping[str, object]) -> tuple[int, int]:
    """Release of Megatron-Bridge whose recipes a row ran with, as its system or its container says.

    A row that names the container alone is of the release in it.
    """
    system = text_of(cells.get("system")).lower()
    if "bridge" in system:
        release = re.search(r"v?(\d+)\.(\d+)\.?\d*", re.sub(r".*bridge", "", system).split(",")[0])
        if release is not None:
            return int(release[1]), int(release[2])
        places, silent = f"{system} {text_of(cells.get('source')).lower()}", UNKNOWN
    else:
        places, silent = system, BEFORE
    container = re.search(r"(?:container|nemo(?: framework)?)\W*(\d\d)\.(\d\d)", places)
    if container is None:
        return silent
    month = int(container[1]), int(container[2])
    return next((version for since, version in sorted(CONTAINERS.items(), reverse=True) if since <= month), BEFORE)


def bridge_release(cells: Mapping[str, object]) -> str:
    """Facts of Megatron-Core in a pre-training container: those of release 0.5 from there on."""
    return "megatron-bridge@0.5" if (0, 5) <= bridge_version(cells) < UNKNOWN else "megatron-bridge@0.4"


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
    version = bridge_version(cells)
    blackwell = re.search(r"\bg?b[23]00", text_of(cells.get("gpu_kind")).lower()) is not None
    silent = not re.search(r"cuda|flex|hybridep|deepep", settings)
    preset = "preset" in text_of(cells.get("config_basis")).lower()  # read whole: what it does not set is off
    whole = blackwell and silent and not preset and "gpt-oss" not in model
    graphs = settings if re.search("cuda", settings) else ""
    captured = [scope for words, scope in SCOPES.items() if graphs and re.search(words, graphs)]
    captured = [] if "no cuda graphs" in graphs else ["iteration"] if whole else captured
    rack = re.search(r"\bgb[23]00", text_of(cells.get("gpu_kind")).lower()) is not None
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
    words = _without_other_recipe(precision.lower())
    if re.search(r"(nv|^|\s)fp4|e2m1", words):
        return "nvfp4"
    if not words or re.search(r"bf16|bfloat16|fp16|float16|half", words):
        return "bf16"
    if re.search(r"fp8|float8", words):
        return "fp8_block" if re.search(r"block|128|mx|\bsc\b|sub-?channel", words) else "fp8"
    raise NotPredicted(f"no training GEMM tables for precision '{precision}'")


def _without_other_recipe(words: str) -> str:
    """A cell without what it says in parentheses of another recipe: "fp8-cs (fp8-mx)" is fp8-cs."""
    return re.sub(r"\([^()]*(?:fp\d|float|bf16|alternative)[^()]*\)", "", words).strip()


def lora_rank(task: str) -> int:
    """Rank of "LoRA r=16"; 16 where a LoRA row does not give it, 0 for full training."""
    if "lora" not in task.lower():
        return 0
    found = re.search(r"r(?:ank)?\s*=\s*(\d+)", task.lower())
    return int(found.group(1)) if found else 16


MODULES = r"moe_act|layer_?norm|core_attn|mla_up_proj|shared_experts|\bmlp\b|\bmoe\b"
"""Parts of a layer that Megatron-Core computes again one by one (``recompute_modules``)."""


def recompute_of(text: str) -> tuple[Recompute, str]:
    """``(level, assumption)`` of a recompute cell."""
    words = text.lower()
    if not words:
        return "none", "recompute not stated: none assumed"
    if words.startswith(("none", "off", "false", "no")):
        return "none", ""
    if "select" in words or (re.search(MODULES, words) and "full" not in words):
        return "selective", ""
    return "full", ""


def recompute_layers(text: str) -> int | None:
    """Layers of "full, 5 layers"; ``None`` for all. A uniform method counts the layers of a group, and covers all."""
    found = re.search(r"(\d+) layers?", text.lower())
    return int(found[1]) if found and "full" in text.lower() and "uniform" not in text.lower() else None
