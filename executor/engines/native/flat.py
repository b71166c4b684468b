"""A rank's parameters in a flat order, each in memory of its own, and their gradients in one buffer."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from executor.weights.parameters import Parameter


@dataclass(frozen=True)
class Extent:
    """Where a parameter stands in the flat order: elements ``[start, stop)``, of this rank's slice shape."""

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
    """Parameters in ``memory`` that is given; gradients add up in fp32 in ``gradient``, padded to ``multiple``.

    ``trained`` says of a name whether it learns. The flat order is that of the parameters that learn,
    each as the checkpoint lays it out, whatever its memory does.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        t: int,
        memory: Mapping[str, torch.Tensor],
        values: Mapping[str, torch.Tensor],
        *,
        multiple: int,
        trained: Callable[[str], bool],
    ) -> None:
        learned = [p for p in parameters if trained(p.name)]
        self.extents = extents_of(learned, t)
        used = self.extents[-1].stop if self.extents else 0
        self.tied_names: set[str] = set()
        """Parameters of which the first and the last stage hold a copy each; the engine names them."""
        self.num_elements = -(-used // multiple) * multiple
        some = next(iter(memory.values()))
        self.gradient = some.new_zeros(self.num_elements, dtype=torch.float32) if learned else None
        self.weights: dict[str, torch.nn.Parameter] = {}
        for name in (parameter.name for parameter in parameters):
            self.weights[name] = torch.nn.Parameter(memory[name].copy_(values[name]), requires_grad=False)
        if self.gradient is not None:
            for extent in self.extents:
                weight = self.weights[extent.parameter.name]
                weight.requires_grad_()
                _collect_gradient(weight, self.view(self.gradient, extent))

    def look_at(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Take the parameters' values from where they lie now; the parameters stay the same objects."""
        for name, weight in self.weights.items():
            weight.data = memory[name]

    def view(self, buffer: torch.Tensor, extent: Extent) -> torch.Tensor:
        """The part of a buffer in the flat order, such as ``gradient``, that belongs to a parameter."""
        return buffer[extent.start : extent.stop].view(extent.shape)

    def copy_out(self, start: int, values: torch.Tensor) -> None:
        """Fill flat ``values`` with the parameters from element ``start`` on; padding stays."""
        for extent in self.extents:
            first, last = max(start, extent.start), min(start + values.numel(), extent.stop)
            if first < last:
                weight = self.weights[extent.parameter.name].detach().reshape(-1)
                values[first - start : last - start].copy_(weight[first - extent.start : last - extent.start])

    def copy_in(self, values: torch.Tensor) -> None:
        """Set all parameters from flat ``values``."""
        for extent in self.extents:
            self.weights[extent.parameter.name].detach().copy_(self.view(values, extent))

    @contextmanager
    def scratch(self, num: int) -> Iterator[torch.Tensor]:
        """Memory for ``num`` elements of the parameters' type: the gradients', zero again after, where there are some.

        Not to be used between a backward pass and its step.
        """
        some = next(iter(self.weights.values())).detach()
        lent = None if self.gradient is None else self.gradient.view(some.dtype)[:num]
        found = some.new_empty(num) if lent is None or lent.numel() < num else lent
        try:
            yield found
        finally:
            found.zero_()

    def counted(self, *, owns_copies: bool) -> list[tuple[int, int]]:
        """Ranges whose elements this rank counts in a norm over all ranks: whole copies on one rank only."""
        mine = [
            (e.start, e.stop)
            for e in self.extents
            if not e.parameter.is_copy and (owns_copies or e.parameter.cut is not None)
        ]
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
