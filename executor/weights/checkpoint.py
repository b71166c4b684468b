"""Weights between files in Hugging Face layout and an engine's local tensors, by the weight map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from executor.weights.adapters import LearnedOnly
from executor.weights.architecture import is_learned, read_config
from executor.weights.files import open_weights
from executor.weights.move import Resharder, view_of
from executor.weights.native_layout import WholeLayout
from executor.weights.parameters import Parameter, drawn
from executor.weights.plan import plan_transfers
from profiles.atomic_write import write_all_or_none
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from executor.weights.architecture import Architecture, Tensor
    from executor.weights.counting_collectives import CountingCollectives
    from executor.weights.regions import Box, Layout, Stored

    Reader = Callable[[Tensor, Box], torch.Tensor]


def fill(arch: Architecture, stored: Iterable[Stored], local: Mapping[str, torch.Tensor], read: Reader) -> None:
    """Set every local tensor from what ``read`` gives; padding becomes zero."""
    tensors = arch.tensors()
    with torch.no_grad():
        for entry in stored:
            if entry.padding:
                local[entry.name].zero_()
            for region in entry.regions:
                view_of(local[entry.name], region, region.box).copy_(read(tensors[region.name], region.box))


def reader_of(arch: Architecture, path: str, seed: int) -> Reader:
    """Reads boxes from the ``*.safetensors`` of a folder; what a ``config.json`` alone leaves open is drawn by seed.

    ``InputError`` for a tensor that is missing or has another shape; what is learned beside a base is drawn where no
    file has it.
    """
    folder = Path(path)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    draw = _drawing(arch, seed)
    return _file_reader(folder, files, draw) if files else draw


def _drawing(arch: Architecture, seed: int) -> Reader:
    latest: dict[str, torch.Tensor] = {}

    def read(tensor: Tensor, box: Box) -> torch.Tensor:
        if tensor.name not in latest:
            latest.clear()  # boxes of one tensor follow one another: keep one whole tensor at most
            latest[tensor.name] = drawn(Parameter(tensor.name, tensor.shape, tensor.layer), arch, seed)
        return latest[tensor.name][tuple(slice(a, b) for a, b in box)]

    return read


def _file_reader(folder: Path, files: list[Path], draw: Reader) -> Reader:
    opened = [open_weights(file) for file in files]
    places = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 - not a mapping

    def read(tensor: Tensor, box: Box) -> torch.Tensor:
        if tensor.name not in places:
            if is_learned(tensor.name):
                return draw(tensor, box)
            raise InputError(f"{folder}: weight {tensor.name} is missing")
        whole = places[tensor.name].get_slice(tensor.name)
        shape = tuple(whole.get_shape())
        if shape != tensor.shape:
            raise InputError(f"{folder}: {tensor.name} has shape {shape}, the config asks for {tensor.shape}")
        found = whole[tuple(slice(a, b) for a, b in box)] if len(box) > 1 else whole[slice(*box[0])]
        assert isinstance(found, torch.Tensor)
        return found

    return read


def gather_whole(
    arch: Architecture, layout: Layout, rank: int, tensors: Mapping[str, torch.Tensor], collectives: CountingCollectives
) -> dict[str, torch.Tensor] | None:
    """The whole checkpoint, or all its adapters, on rank 0, ``None`` elsewhere; every rank calls this."""
    whole: Layout = WholeLayout(arch, layout.num_ranks, frozenset({0}))
    if arch.adapters is not None:
        whole = LearnedOnly(whole)
    plan = plan_transfers(arch, layout, whole)
    some = next(iter(tensors.values()))
    target = {stored.name: some.new_empty(stored.shape) for stored in whole.stored(rank)}
    Resharder(plan, rank, collectives).move(tensors, target)
    return target if rank == 0 else None


def write_folder(path: Path, config: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A folder that transformers reads: ``config.json`` and ``model.safetensors``, both or neither."""
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_all_or_none(
        {
            path / "config.json": json.dumps(dict(read_config(config)), indent=1) + "\n",
            path / "model.safetensors": lambda file: save_file(whole, file, metadata={"format": "pt"}),
        }
    )
