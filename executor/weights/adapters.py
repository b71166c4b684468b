"""Models with adapters on disk and between ranks: only what is learned is sent and saved."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.weights.architecture import is_learned
from profiles.atomic_write import write_all_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from executor.weights.architecture import Adapters
    from executor.weights.regions import Layout, Stored


@dataclass(frozen=True)
class LearnedOnly:
    """What ranks hold of adapters and score head in another layout: all that changes between two transitions."""

    layout: Layout

    @property
    def num_ranks(self) -> int:
        return self.layout.num_ranks

    def stored(self, rank: int) -> tuple[Stored, ...]:
        return tuple(entry for entry in self.layout.stored(rank) if is_learned(entry.name))


def write_adapters(path: Path, base: str, adapters: Adapters, tensors: Mapping[str, torch.Tensor]) -> None:
    """A folder that PEFT reads: ``adapter_config.json`` and ``adapter_model.safetensors``, both or neither.

    ``base`` is where the weights beside the adapters are.
    """
    from safetensors.torch import save_file

    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(name.rpartition(".")[2] for name in adapters.projections),
    }
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    write_all_or_none(
        {
            path / "adapter_config.json": json.dumps(config, indent=1) + "\n",
            path / "adapter_model.safetensors": lambda file: save_file(named, file, metadata={"format": "pt"}),
        }
    )
