"""Writing a sharded model in Hugging Face layout, whichever engine holds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from executor.collectives import own_group
from executor.weights.adapters import write_adapters
from executor.weights.checkpoint import gather_whole, write_folder
from executor.weights.counting_collectives import CountingCollectives

if TYPE_CHECKING:
    from executor.engines.interfaces import TrainingEngine


def save_model(engine: TrainingEngine, folder: str) -> None:
    """``config.json`` and ``model.safetensors`` into ``folder``, written by rank 0; every rank calls this.

    Of a model with adapters these alone, as PEFT reads them.
    """
    rank, num = engine.identity.rank, engine.layout.num_ranks
    collectives = CountingCollectives(own_group(rank, [list(range(num))], engine.clock))
    whole = gather_whole(engine.arch, engine.layout, rank, engine.tensors(), collectives)
    if whole is not None:
        tensors = {name: tensor.cpu() for name, tensor in whole.items()}
        if engine.arch.adapters is not None:
            write_adapters(Path(folder), engine.spec.path, engine.arch.adapters, tensors)
        else:
            write_folder(Path(folder), Path(engine.spec.path), tensors)
    collectives.agree(engine.device, ok=True)
