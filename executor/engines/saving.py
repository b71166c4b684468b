"""Writing a sharded model in Hugging Face layout, whichever engine holds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from executor.collectives import own_group
from executor.weights.checkpoint import gather_whole, write_folder
from executor.weights.counting_collectives import Wire

if TYPE_CHECKING:
    import torch

    from executor.collectives import CommClock
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout


class Holder(Protocol):
    """What saving asks of an engine."""

    arch: Architecture
    layout: Layout
    clock: CommClock
    identity: Any
    spec: Any

    def tensors(self) -> dict[str, torch.Tensor]: ...


def save_model(engine: Any, folder: str) -> None:
    """``config.json`` and ``model.safetensors`` into ``folder``, written by rank 0; every rank calls this."""
    holder: Holder = engine
    rank, num = holder.identity.rank, holder.layout.num_ranks
    wire = Wire(own_group(rank, [list(range(num))], holder.clock))
    whole = gather_whole(holder.arch, holder.layout, rank, holder.tensors(), wire)
    if whole is not None:
        write_folder(Path(folder), Path(holder.spec.path), {name: tensor.cpu() for name, tensor in whole.items()})
    wire.agree(ok=True)
