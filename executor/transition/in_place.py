"""The zero-redundancy transition in its pure form: training shards are views of the generation buffer.

For layouts that keep the checkpoint's tensors apart and lay them out so that slices gathered in order make up the whole
(``native_layout``): each evenly sharded tensor has one buffer of its generation shard's size, in which this rank's
training shard has its place; an all-gather in the micro-DP group fills in the rest. No byte is held twice, and going
back to training is to look at the view again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.transition.mover import exchange_bucket, view_of
from executor.transition.regions import Box, Region, Stored, intersection
from profiles.errors import InputError

if TYPE_CHECKING:
    from executor.engines.torch_native.comms import Group
    from executor.transition.transfers import TransferPlan
    from executor.transition.wire import Wire


class SharedWeights:
    """One rank's weights for training and for generation, in the same memory.

    ``training`` and ``generation`` are local tensors by name; the latter are undefined until ``gather``. A training
    tensor that lies in no generation tensor of this rank has memory of its own: ``redundant_bytes``.
    """

    def __init__(self, plan: TransferPlan, rank: int, dtype: torch.dtype, device: str = "cpu") -> None:
        self.plan, self.rank = plan, rank
        self._kind = {"dtype": dtype, "device": device}
        self._source = {stored.slot: stored for stored in plan.source.stored(rank)}
        self.training: dict[str, torch.Tensor] = {}
        self.generation: dict[str, torch.Tensor] = {}
        self._buffers: list[list[torch.Tensor]] = []
        self.redundant_bytes = 0
        self._lay_out_gathers()
        self._lay_out_rest()

    @property
    def held(self) -> list[torch.Tensor]:
        """One tensor for each piece of memory that the weights take, training and generation together."""
        found = {t.untyped_storage().data_ptr(): t for t in (*self.generation.values(), *self.training.values())}
        return list(found.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of that memory."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.held)

    def gather(self, wire: Wire, group: Group | None) -> None:
        """Fill the generation tensors; every rank calls this. Training tensors keep their values throughout."""
        for buffers in self._buffers:
            assert group is not None
            wire.all_gather_all_in_place(buffers, group)
        for bucket in self.plan.exchanges:
            exchange_bucket(bucket, self.rank, self.training, self.generation, wire)

    def _lay_out_gathers(self) -> None:
        group = self.plan.group_of(self.rank)
        wanted = {
            stored.regions[0].name: stored for stored in self.plan.target.stored(self.rank) if len(stored.regions) == 1
        }
        for bucket in self.plan.gathers[group] if group else ():
            buffers = []
            for parts in zip(*bucket.members, strict=True):
                buffers.append(self._one_buffer(group, parts, wanted))
            self._buffers.append(buffers)

    def _one_buffer(self, group: tuple[int, ...], parts: tuple[Stored, ...], wanted: dict[str, Stored]) -> torch.Tensor:
        """The buffer of one slot: ``parts`` of all members in order, each target tensor a run of them."""
        size, mine = parts[0].numel, group.index(self.rank)
        buffer: torch.Tensor = torch.empty(size * len(parts), **self._kind)  # type: ignore[call-overload]
        self.training[parts[mine].name] = buffer[mine * size : (mine + 1) * size].view(parts[mine].shape)
        for name in dict.fromkeys(part.regions[0].name for part in parts):
            run = [i for i, part in enumerate(parts) if part.regions[0].name == name]
            target = wanted[name]
            begin, stop = run[0] * size, (run[-1] + 1) * size
            rows = parts[0].shape[0]
            for order, i in enumerate(run):
                at = _place_in(target.regions[0], parts[i].regions[0])
                if i != run[0] + order or at is None or at[0] != order * rows or any(at[1:]):
                    raise InputError(f"slices of {name} do not stand in the order of their ranks")
            self.generation[target.name] = buffer[begin:stop].view(target.shape)
        return buffer

    def _lay_out_rest(self) -> None:
        for target in self.plan.target.stored(self.rank):
            if target.name in self.generation:
                continue
            tensor = torch.empty(target.shape, **self._kind)  # type: ignore[call-overload]
            self.generation[target.name] = tensor
            for stored in self._source.values():
                place = self._view_in(target, tensor, stored)
                if stored.name not in self.training and place is not None:
                    self.training[stored.name] = place
        for stored in self._source.values():
            if stored.name not in self.training:
                self.training[stored.name] = torch.empty(stored.shape, **self._kind)  # type: ignore[call-overload]
                self.redundant_bytes += self.training[stored.name].nbytes

    def _view_in(self, target: Stored, tensor: torch.Tensor, stored: Stored) -> torch.Tensor | None:
        """The training tensor as a view of a target tensor that holds all of it, if it does."""
        if len(stored.regions) != 1 or len(target.regions) != 1:
            return None
        theirs, ours = target.regions[0], stored.regions[0]
        if ours.name != theirs.name or ours.transposed != theirs.transposed:
            return None
        if _place_in(theirs, ours) is None:
            return None
        found = view_of(tensor, theirs, ours.box)
        return found.t() if ours.transposed else found


def _place_in(outer: Region, inner: Region) -> tuple[int, ...] | None:
    """Where ``inner`` begins inside ``outer``, in the order in which local tensors lie; ``None`` if it is not in."""
    both: Box | None = intersection(outer.box, inner.box)
    if both != inner.box:
        return None
    at = tuple(i[0] - o[0] for i, o in zip(inner.box, outer.box, strict=True))
    return at[::-1] if inner.transposed else at
