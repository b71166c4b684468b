"""Drafts in vLLM: a small model with weights of its own, which no transition brings and none takes away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.records import Drafted
from executor.weights.architecture import read_architecture
from executor.weights.files import open_weights
from profiles.errors import InputError, NotYetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from executor.engines.model_spec import DraftSpec
    from executor.weights.architecture import Architecture

STEPS, KEPT = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos"
"""vLLM's counters of drafts checked, and of those whose token at each position was kept."""


def draft_architecture(draft: DraftSpec, policy: Architecture) -> Architecture:
    """The model that drafts; ``InputError`` where it has no weights, or another vocabulary than the actor."""
    folder = Path(draft.path)
    if not any(folder.glob("*.safetensors")):
        raise InputError(f"run.weights.draft: {folder} is no folder with config.json and *.safetensors")
    arch = read_architecture(draft.path)
    if arch.vocab != policy.vocab:
        raise InputError(
            f"run.weights.draft: {folder} has a vocabulary of {arch.vocab:,}, the actor one of {policy.vocab:,}; a "
            "draft's tokens are checked one by one, so they must be the same"
        )
    if arch.num_experts:
        raise NotYetError(f"run.weights.draft: {folder} has {arch.num_experts} experts, which cannot draft yet")
    return arch


def draft_settings(draft: DraftSpec, tensor_parallel: int) -> dict[str, Any]:
    """Arguments of ``LLM``; while it sleeps its copy of the draft waits in host memory, since nobody brings another."""
    config = {
        "method": "draft_model",
        "model": draft.path,
        "num_speculative_tokens": draft.tokens,
        "draft_tensor_parallel_size": tensor_parallel,
    }
    return {"speculative_config": config, "sleep_preserve_parameter_names": ["draft.*"]}


def load_draft(model: Any, draft: DraftSpec) -> None:
    """Read its weights: vLLM makes it blank, like the model that it drafts for; ``InputError`` for one that is missing.

    vLLM 0.32 has ``draft_load_config``, which its draft models do not read.
    """
    found = model.load_weights(_weights(Path(draft.path)))
    missing = sorted({name for name, _ in model.named_parameters()} - found)
    if missing:
        raise InputError(f"run.weights.draft: {draft.path} has nothing for {', '.join(missing[:3])}")


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with open_weights(path) as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)


class DraftCounter:
    """What vLLM's counters say of each call; they count from the start of the process, which has one engine."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._before = self._so_far()

    def take(self) -> Drafted:
        """Drafts since this was last asked."""
        before, self._before = self._before, self._so_far()
        kept = zip(self._before.kept, before.kept, strict=True)
        return Drafted(self._before.steps - before.steps, tuple(now - then for now, then in kept))

    def _so_far(self) -> Drafted:
        found = {metric.name: metric for metric in self._llm.get_metrics() if metric.name in (STEPS, KEPT)}
        return Drafted(int(found[STEPS].value), tuple(map(int, found[KEPT].values)))
