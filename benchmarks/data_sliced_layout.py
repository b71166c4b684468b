"""The layout that DeepSpeed-Chat's method starts from: no engine here has it, Table 2 compares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.weights.regions import Region, Stored
from simulator.plan.groups import training_coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class DataSlicedLayout:
    """``layout`` with each local tensor's rows dealt out over the data-parallel replicas that hold it alike.

    What DeepSpeed-Chat's ZeRO shards are to a tensor-parallel layout: all ranks together hold each element once. Rows
    that do not divide stay whole on each replica.
    """

    layout: Layout
    degrees: Degrees

    @property
    def num_ranks(self) -> int:
        return self.layout.num_ranks

    def stored(self, rank: int) -> tuple[Stored, ...]:
        return tuple(self._mine(stored, rank) for stored in self.layout.stored(rank))

    def tensors(self, rank: int, local: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of this layout as views of the whole local ones."""
        found = {}
        for stored in self.layout.stored(rank):
            start, stop = self._rows(stored, rank)
            found[stored.name] = local[stored.name][start:stop]
        return found

    def _rows(self, stored: Stored, rank: int) -> tuple[int, int]:
        n, d = stored.shape[0], self.degrees.d
        spread = ".experts." in stored.name and getattr(self.layout, "ep", 1) > 1  # replicas hold different experts
        if n % d or stored.padding or spread:
            return 0, n
        dp = training_coordinates(rank, self.degrees)[2]
        return dp * (n // d), (dp + 1) * (n // d)

    def _mine(self, stored: Stored, rank: int) -> Stored:
        start, stop = self._rows(stored, rank)
        regions = tuple(found for r in stored.regions if (found := _clipped(r, start, stop)) is not None)
        shape = (stop - start, *stored.shape[1:])
        return Stored(stored.name, shape, regions, stored.layer, stored.slot)


def _clipped(region: Region, start: int, stop: int) -> Region | None:
    """The part of a region in rows ``[start, stop)`` of its local tensor, placed in those rows alone."""
    axis = len(region.box) - 1 if region.transposed else 0
    lead = len(region.at) - len(region.box)
    if lead:  # stacked experts: rows are experts
        inside = start <= region.at[0] < stop
        return Region(region.name, region.box, (region.at[0] - start, *region.at[1:])) if inside else None
    low, high = region.box[axis]
    first, last = max(start, region.at[0]), min(stop, region.at[0] + high - low)
    if first >= last:
        return None
    box = list(region.box)
    box[axis] = (low + first - region.at[0], low + last - region.at[0])
    return Region(region.name, tuple(box), (first - start, *region.at[1:]), region.transposed)
