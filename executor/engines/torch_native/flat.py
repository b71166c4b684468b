"""A rank's parameters in one flat buffer, with their gradients in another: one collective moves all of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.engines.torch_native.weights import Parameter


@dataclass(frozen=True)
class Extent:
    """Where a parameter lies in the buffer: elements ``[start, stop)``, of this rank's slice shape."""

    parameter: Parameter
    shape: tuple[int, ...]
    start: int
    stop: int


def extents_of(parameters: list[Parameter], t: int) -> list[Extent]:
    """Parameters one after another, in the order of the list."""
    found, start = [], 0
    for parameter in parameters:
        shape = parameter.local_shape(t)
        stop = start + torch.Size(shape).numel()
        found.append(Extent(parameter, shape, start, stop))
        start = stop
    return found


class FlatParameters:
    """Parameters as views of ``data``; gradients add up in fp32 in ``gradient``. Both are padded to ``multiple``."""

    def __init__(
        self, parameters: list[Parameter], t: int, values: Mapping[str, torch.Tensor], *, dtype: torch.dtype,
        device: torch.device, multiple: int, trained: bool,
    ) -> None:  # fmt: skip
        self.extents = extents_of(parameters, t)
        used = self.extents[-1].stop if self.extents else 0
        self.tied_names: set[str] = set()
        """Parameters of which the first and the last stage hold a copy each; the engine names them."""
        self.data = torch.zeros(-(-used // multiple) * multiple, dtype=dtype, device=device)
        self.gradient = torch.zeros_like(self.data, dtype=torch.float32) if trained else None
        self.weights: dict[str, torch.nn.Parameter] = {}
        for extent in self.extents:
            view = self.data[extent.start : extent.stop].view(extent.shape)
            view.copy_(values[extent.parameter.name])
            weight = torch.nn.Parameter(view, requires_grad=trained)
            if self.gradient is not None:
                _collect_gradient(weight, self.gradient[extent.start : extent.stop].view(extent.shape))
            self.weights[extent.parameter.name] = weight

    def view(self, buffer: torch.Tensor, extent: Extent) -> torch.Tensor:
        """The part of a buffer like ``data`` or ``gradient`` that belongs to a parameter."""
        return buffer[extent.start : extent.stop].view(extent.shape)

    def counted(self, *, owns_copies: bool) -> list[tuple[int, int]]:
        """Ranges whose elements this rank counts in a norm over all ranks: whole copies on one rank only."""
        mine = [
            (e.start, e.stop) for e in self.extents
            if not e.parameter.is_copy and (owns_copies or e.parameter.cut is not None)
        ]  # fmt: skip
        return _merged(mine)


def _collect_gradient(weight: torch.nn.Parameter, into: torch.Tensor) -> None:
    """Add the gradient to ``into`` as soon as it is there, and free it."""

    def move(param: torch.Tensor) -> None:
        assert param.grad is not None
        into.add_(param.grad)
        param.grad = None

    weight.register_post_accumulate_grad_hook(move)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring ranges as one."""
    if not ranges:
        return []
    edges = [i for i, (a, b) in enumerate(pairwise(ranges), start=1) if a[1] != b[0]]
    cuts = [0, *edges, len(ranges)]
    return [(ranges[i][0], ranges[j - 1][1]) for i, j in pairwise(cuts)]
