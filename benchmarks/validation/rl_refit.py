"""Rows that measure the hand-over of weights alone: the rest of their iteration is filled in, and priced by nobody."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.validation.names import NotPredicted, is_empty, number, published_models, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

WORK = {"algorithm": "GRPO", "prompts_per_step": "256", "samples_per_prompt": "1", "mean_prompt_len": "1"}
WORK |= {"mean_response_len": "1", "max_response_len": "1", "max_seq_len": "2", "global_batch": "256"}
"""As little work as any layout divides: a hand-over does not depend on it."""

ENGINES = {"train_backend": "FSDP2", "gen_backend": "vLLM", "precision_gen": "BF16", "schedule": "sync"}
ENGINES |= {"gen_gpu_mem_util": "0.9", "recompute": "none"}

RECIPES: dict[str, dict[str, str]] = {
    "deepseek-v3": {"num_gpus": "256", "train_tp": "1", "train_pp": "16", "train_ep": "16", "gen_tp": "32"},
    "qwen3-235b-a22b": {
        **{"num_gpus": "256", "train_gpus": "128", "gen_gpus": "128"},
        **{"train_tp": "4", "train_pp": "8", "train_ep": "16", "gen_tp": "8"},
    },
}
"""NeMo-RL's own recipes, which its published steps of these models ran with."""


def completed(cells: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """The row with a whole iteration around it; what was taken from a recipe is said in ``assumed``.

    Raises
    ------
    NotPredicted
        Neither the row nor a recipe says how many GPUs there were.
    """
    found = {**WORK, **ENGINES}
    if "nemo" in text_of(cells.get("system")).lower():
        found |= {"train_backend": "Megatron-Core", "system": "NeMo-RL"}
    if number(cells.get("num_gpus")) is None:
        model = published_models(text_of(cells.get("model")))["actor"].name
        if model not in RECIPES:
            raise NotPredicted("num_gpus is not stated, and no recipe of the system gives it")
        found |= RECIPES[model]
        assumed.append("GPUs and layouts not stated: those of the system's own recipe")
    elif number(cells.get("train_tp")) is None:
        experts = re.search(r"\bep\s*(\d+)", text_of(cells.get("notes")).lower())
        found |= {"train_tp": "1", "train_ep": experts[1] if experts else "1", "gen_tp": "1"}
        assumed.append("layouts not stated: sharded data parallelism, engines of one GPU")
    return found | {name: cell for name, cell in cells.items() if not is_empty(cell)}
