"""Rows that measure the hand-over of weights alone: the rest of their iteration is filled in, and priced by nobody."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from benchmarks.validation.devices import device_profile
from benchmarks.validation.names import (
    NotPredicted,
    is_empty,
    number,
    published_device,
    published_models,
    text_of,
)
from benchmarks.validation.rl_work import is_separate
from profiles.units import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

WORK = {"algorithm": "GRPO", "prompts_per_step": "256", "samples_per_prompt": "1", "mean_prompt_len": "1"}
WORK |= {"mean_response_len": "1", "max_response_len": "1", "max_seq_len": "2", "global_batch": "256"}
"""As little work as any layout divides: a hand-over does not depend on it."""

ENGINES = {"train_backend": "FSDP2", "gen_backend": "vLLM", "precision_gen": "BF16", "schedule": "sync"}
ENGINES |= {"gen_gpu_mem_util": "0.9", "recompute": "none"}

COLOCATED: dict[str, dict[str, str]] = {
    "deepseek-v3": {"num_gpus": "256", "train_pp": "16", "train_ep": "16", "gen_tp": "32"},
    "qwen3-235b-a22b": {
        **{"num_gpus": "128", "train_tp": "2", "train_pp": "8", "train_cp": "2", "train_ep": "16", "gen_tp": "16"},
    },
    "qwen3-30b-a3b": {"num_gpus": "32", "train_ep": "8", "gen_tp": "2"},
    "qwen3-32b": {"num_gpus": "32", "train_tp": "4", "train_pp": "4", "gen_tp": "4"},
    "llama-3.1-8b": {"num_gpus": "16", "train_pp": "2", "gen_tp": "1"},
}
SEPARATE: dict[str, dict[str, str]] = {
    "deepseek-v3": {"num_gpus": "512", "train_pp": "16", "train_ep": "16", "gen_tp": "32"},
    "qwen3-235b-a22b": {"num_gpus": "256", "train_tp": "4", "train_pp": "8", "train_ep": "16", "gen_tp": "8"},
    "qwen3-30b-a3b": {"num_gpus": "32", "train_pp": "2", "train_ep": "8", "gen_tp": "2"},
    "qwen3-32b": {"num_gpus": "64", "train_tp": "4", "train_pp": "4", "gen_tp": "4"},
    "llama-3.1-8b": {"num_gpus": "16", "gen_tp": "1"},
}
"""NeMo-RL's own recipes, which its published steps of these models ran with; apart, half of the GPUs train."""

KNOWN = r"nemo|verl|slime|openrlhf|skyrl|prime-rl|\btrl\b"
"""Systems that hand each tensor to the engine as our facts have it; a hand-over of another kind has no price."""

WEIGHTS_SHARE = 0.85
"""Share of a GPU's memory that an engine's weights may take where its layout is not stated: the rest is its cache."""


def completed(cells: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """The row with a whole iteration around it; what was taken from a recipe is said in ``assumed``.

    Raises
    ------
    NotPredicted
        Neither the row nor a recipe says how many GPUs there were.
    """
    found = {**WORK, **ENGINES}
    system = text_of(cells.get("system")).lower()
    if not re.search(KNOWN, system):
        raise NotPredicted(f"no facts of how '{text_of(cells.get('system'))}' hands weights over")
    if "nemo" in system:
        found |= {"train_backend": "Megatron-Core", "system": "NeMo-RL"}
    if "slime" in system:
        found |= {"train_backend": "Megatron-Core", "gen_backend": "SGLang"}
    if number(cells.get("num_gpus")) is None:
        model = published_models(text_of(cells.get("model")))["actor"].name
        recipes = SEPARATE if is_separate(cells) else COLOCATED
        if "nemo" not in system or model not in recipes:
            raise NotPredicted("num_gpus is not stated, and no recipe of the system gives it")
        found |= {"train_tp": "1", **recipes[model]}
        assumed.append("GPUs and layouts not stated: those of the system's own recipe")
    elif number(cells.get("train_tp")) is None:
        experts = re.search(r"\bep\s*(\d+)", text_of(cells.get("notes")).lower())
        found |= {"train_tp": "1", "train_ep": experts[1] if experts else "1"}
        found |= {"gen_tp": str(fewest_gpus(cells))}
        size = "one GPU" if found["gen_tp"] == "1" else f"{found['gen_tp']} GPUs"
        assumed.append(f"layouts not stated: sharded data parallelism, engines of {size}")
    return found | {name: cell for name, cell in cells.items() if not is_empty(cell)}


def fewest_gpus(cells: Mapping[str, Any]) -> int:
    """GPUs of the smallest engine that holds the model's weights: a power of two."""
    shape = published_models(text_of(cells.get("model")))["actor"]
    spec = device_profile(published_device(text_of(cells.get("gpu_kind")))).spec
    share = shape.num_params * DTYPE_BYTES["bf16"] / (WEIGHTS_SHARE * spec.memory_bytes)
    return 2 ** max(0, math.ceil(math.log2(share)))
