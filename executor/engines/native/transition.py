"""From the training layout to that of generation and back, in the same memory: no byte of a weight is held twice.

The members of a micro-DP group hold exactly the training shards that make up their generation shard (groups and
shards: ``simulator.plan.groups``), and gather it from each other in place (``executor.weights.in_place``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.checks import bit_sums, require_equal_totals
from executor.collectives import own_group
from executor.records import WeightsMoved
from executor.weights.counting_collectives import CountingCollectives
from executor.weights.in_place import SharedWeights
from executor.weights.memory_meter import MemoryMeter
from executor.weights.move import view_of
from executor.weights.mover import MoveLog
from executor.weights.native_layout import NativeLayout
from executor.weights.plan import TransferPlan, plan_transfers
from simulator.plan.groups import micro_dp_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from executor.collectives import Group
    from executor.engines.native.flat import FlatParameters
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Stored
    from simulator.plan.groups import Degrees


def in_place_plan(arch: Architecture, degrees: Degrees) -> TransferPlan:
    """What crosses between the two layouts; nothing where they are the same. ``InputError`` if they do not nest.

    Matrices that are cut by columns lie transposed where generation cuts tensors otherwise than training: then a
    rank's slice of them is one run of the generation shard's memory. Elsewhere they lie as in the checkpoint.
    """
    transposed = degrees.t != degrees.tg
    source = NativeLayout(arch, degrees, "training", transposed=transposed)
    if (degrees.pg, degrees.tg) == (degrees.p, degrees.t):
        return TransferPlan(source, source, {}, ())
    target = NativeLayout(arch, degrees, "generation", transposed=transposed)
    return plan_transfers(arch, source, target, micro_dp_groups(degrees))


class Transition:
    """One rank's weights in two layouts, and what the last change to generation moved (``log``).

    ``plan`` is an ``in_place_plan``, ``group`` this rank's micro-DP group. ``training`` and ``generation`` are weights
    by name in the checkpoint's orientation.
    """

    def __init__(self, plan: TransferPlan, rank: int, dtype: torch.dtype, device: torch.device, group: Group) -> None:
        self.plan, self.rank, self._group = plan, rank, group
        self.weights = SharedWeights(plan, rank, dtype, device)
        self._trained, self._generating = plan.source.stored(rank), plan.target.stored(rank)
        everyone = list(range(plan.source.num_ranks))
        together = [[one] for one in everyone] if plan.is_local else [everyone]  # no group where no byte crosses
        self.collectives = CountingCollectives(own_group(rank, together, group.clock))
        self.log = MoveLog()
        self._stays = plan.source is plan.target
        self._kept = self.training if self._stays else {}

    @property
    def training(self) -> dict[str, torch.Tensor]:
        """The training shard of this rank, wherever it lies now."""
        return _upright(self._trained, self.weights.training)

    @property
    def generation(self) -> dict[str, torch.Tensor]:
        """The generation shard of this rank, between ``to_generation`` and ``to_training``."""
        if self._stays:
            return self._kept
        return _upright(self._generating, self.weights.generation)

    @property
    def held(self) -> list[torch.Tensor]:
        """The weights' memory, one flat tensor for each piece of it."""
        return self.weights.held

    def to_generation(self, flat: FlatParameters, *, check: bool) -> None:
        """Gather the generation shard around the training shard, on which ``flat``'s parameters keep looking.

        ``check``: compare it with what its ranks trained; ``UnequalWeightsError``. Every rank calls this. If it fails
        half way, this rank is back in the training layout with the weights that it had.
        """
        if self._stays:  # the same tensors generate: views of them would be made anew in each iteration
            self._account(self.weights.held_bytes)
            return
        check = check and not self.plan.is_local
        trained = group_totals(self.plan, self.rank, self.weights.training, self._group) if check else {}
        lent = [flat.gradient] if flat.gradient is not None else []
        self.collectives.count.sent_bytes = self.collectives.count.received_bytes = 0
        try:
            with MemoryMeter([*self.held, *lent]) as meter, flat.scratch(self.weights.num_staged) as scratch:
                self.weights.to_generation(self.collectives, self._group, scratch)
        except Exception:
            self.to_training(flat)
            raise
        self._follow(flat)
        self._account(meter.peak_bytes - sum(tensor.nbytes for tensor in lent))
        if check:
            require_gathered(self.weights.generation, trained)

    def to_training(self, flat: FlatParameters) -> None:
        """Keep the training shard alone; this rank's own business."""
        if self._stays:
            return
        with flat.scratch(self.weights.num_staged) as scratch:
            self.weights.to_training(scratch)
        self._follow(flat)

    def _follow(self, flat: FlatParameters) -> None:
        """Let parameters look at where the training shard lies now."""
        if self.weights.num_staged:  # else it never moves
            flat.look_at(self.training)

    def _account(self, peak_bytes: int) -> None:
        count, bucket_bytes = self.collectives.count, peak_bytes - self.weights.held_bytes
        self.log.note(WeightsMoved(count.received_bytes, count.sent_bytes, bucket_bytes, peak_bytes))


def group_totals(plan: TransferPlan, rank: int, training: Mapping[str, torch.Tensor], group: Group) -> dict[str, int]:
    """Sums of the bits of each checkpoint tensor over the distinct parts of it that the ranks of ``group`` train."""
    tables = [plan.source.stored(member) for member in group.ranks]
    own = [stored.name for stored in plan.source.stored(rank)]
    found = bit_sums({name: training[name] for name in own})
    mine = found.new_zeros(max(map(len, tables)))
    mine[: len(own)] = found
    parts = {
        (stored.regions[0].name, stored.regions[0].box): total
        for table, sums in zip(tables, group.all_gather(mine), strict=True)
        for stored, total in zip(table, sums.tolist(), strict=False)
    }
    totals: dict[str, int] = {}
    for (name, _), total in parts.items():
        totals[name] = totals.get(name, 0) + total
    return totals


def require_gathered(generation: Mapping[str, torch.Tensor], trained: Mapping[str, int]) -> None:
    """Compare a generation shard with the ``group_totals`` of what was trained; ``UnequalWeightsError``."""
    require_equal_totals(dict(zip(generation, bit_sums(generation).tolist(), strict=True)), trained)


def _upright(stored: tuple[Stored, ...], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Local tensors as the checkpoint lays them out, in the same memory."""
    return {entry.name: view_of(tensors[entry.name], entry.regions[0], entry.regions[0].box) for entry in stored}
