"""The zero-redundancy transition in its pure form: training shards are views of the generation buffer.

For layouts that keep the checkpoint's tensors apart and lay them out so that slices gathered in order make up the whole
(``native_layout``): each evenly sharded tensor has one piece of memory. While the model trains it holds this rank's
training shard alone; to generate it grows to the generation shard, in which the training shard has its place, and an
all-gather in the micro-DP group fills in the rest. No byte is held twice, and going back to training is to keep the
slice and give back the rest, without communication.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from executor.weights.move import exchange_bucket, view_of
from executor.weights.regions import Box, Region, Stored, intersection
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.collectives import Group
    from executor.weights.counting_collectives import CountingCollectives
    from executor.weights.plan import TransferPlan


class Memory:
    """One piece of memory: a training tensor alone, or in its ``place`` among ``num_elements`` that generate.

    ``stored`` is ``None`` where this rank trains nothing of it: then it has no bytes until it grows.
    """

    def __init__(
        self, num_elements: int, stored: Stored | None, place: Callable[[torch.Tensor], torch.Tensor], blank: Any
    ) -> None:
        self.num_elements, self.num_kept = num_elements, stored.numel if stored else 0
        self._place = place
        self._alone: torch.Tensor = blank.new_empty(stored.shape if stored else (0,))
        self.is_grown = False

    @property
    def flat(self) -> torch.Tensor:
        """All of it as it is now, one-dimensional."""
        if not self.is_grown:
            return self._alone.view(-1)
        found = self._alone.new_empty(0)
        return found.set_(self._alone.untyped_storage(), 0, (self.num_elements,), (1,))

    @property
    def training(self) -> torch.Tensor:
        """The training tensor as it lies now."""
        return self._place(self.flat) if self.is_grown else self._alone

    @property
    def num_staged(self) -> int:
        """Elements that wait in scratch memory while the size changes; 0 where it never does."""
        return self.num_kept if self.num_kept != self.num_elements else 0

    def resize(self, scratch: torch.Tensor, *, grown: bool) -> None:
        """Grow or shrink. The training tensor waits in ``scratch``, so that it never lies in two sizes at once."""
        if grown == self.is_grown:
            return
        if self.num_kept == self.num_elements:
            self.is_grown = grown
            return
        waiting = scratch[: self.num_kept].view(self._alone.shape).copy_(self.training) if self.num_kept else None
        storage = self._alone.untyped_storage()
        storage.resize_(0)
        storage.resize_((self.num_elements if grown else self.num_kept) * self._alone.element_size())
        self.is_grown = grown
        if waiting is not None:
            self.training.copy_(waiting)


class _Part(NamedTuple):
    """A generation tensor in its memory."""

    memory: Memory
    start: int
    shape: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        return self.memory.flat[self.start : self.start + torch.Size(self.shape).numel()].view(self.shape)


class SharedWeights:
    """One rank's weights for training and for generation, in the same memory.

    A training tensor that lies in no generation tensor of this rank has memory of its own: ``redundant_bytes``.
    ``scratch`` of the two changes is memory for ``num_staged`` elements of the weights' type, which nobody needs
    meanwhile.
    """

    def __init__(self, plan: TransferPlan, rank: int, dtype: torch.dtype, device: str | torch.device = "cpu") -> None:
        self.plan, self.rank = plan, rank
        self._blank = torch.empty(0, dtype=dtype, device=device)
        self._source = {stored.name: stored for stored in plan.source.stored(rank)}
        self._trains: dict[str, Memory] = {}
        self._generates: dict[str, _Part] = {}
        self._gathered: list[list[Memory]] = []
        self._rest: list[Memory] = []
        self._lay_out_gathers()
        self._lay_out_rest()

    @property
    def training(self) -> dict[str, torch.Tensor]:
        """Training tensors by name, valid until the next change between training and generation."""
        return {name: memory.training for name, memory in self._trains.items()}

    @property
    def generation(self) -> dict[str, torch.Tensor]:
        """Generation tensors by name, those that have their memory by now."""
        return {name: part.tensor() for name, part in self._generates.items() if part.memory.is_grown}

    @property
    def pieces(self) -> list[Memory]:
        """Every piece of memory, what is gathered last."""
        return [*self._rest, *(memory for bucket in self._gathered for memory in bucket)]

    @property
    def held(self) -> list[torch.Tensor]:
        """One tensor for each piece of memory that the weights take, training and generation together."""
        return [memory.flat for memory in self.pieces]

    @property
    def held_bytes(self) -> int:
        """Bytes of that memory."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.held)

    @property
    def num_staged(self) -> int:
        """Elements of scratch memory that a change needs."""
        return max((memory.num_staged for memory in self.pieces), default=0)

    @property
    def redundant_bytes(self) -> int:
        """Bytes of training tensors that are no views of what generates."""
        inside = {id(part.memory) for part in self._generates.values()}
        apart = (memory for memory in self.pieces if id(memory) not in inside)
        return sum(memory.num_kept for memory in apart) * self._blank.element_size()

    def to_generation(self, collectives: CountingCollectives, group: Group | None, scratch: torch.Tensor) -> None:
        """Fill the generation tensors; every rank calls this. Training tensors keep their values throughout.

        What is exchanged comes first, while what is gathered has the size of training: the buffers of an exchange then
        take memory that the generation shard needs later anyway.
        """
        for memory in self._rest:
            memory.resize(scratch, grown=True)
        training, generation = self.training, self.generation
        for exchange in self.plan.exchanges:
            exchange_bucket(exchange, self.rank, training, generation, collectives)
        for bucket in self._gathered:
            assert group is not None, "a plan with gathers needs the group's handle"
            for memory in bucket:
                memory.resize(scratch, grown=True)
            collectives.all_gather_in_place([memory.flat for memory in bucket], group)

    def to_training(self, scratch: torch.Tensor) -> None:
        """Keep the training tensors alone and give back the rest, on this rank."""
        for memory in self.pieces:
            memory.resize(scratch, grown=False)

    def _lay_out_gathers(self) -> None:
        group = self.plan.group_of(self.rank)
        wanted = {
            stored.regions[0].name: stored for stored in self.plan.target.stored(self.rank) if len(stored.regions) == 1
        }
        for bucket in self.plan.gathers[group] if group else ():
            self._gathered.append(
                [self._one_gather(group, parts, wanted) for parts in zip(*bucket.members, strict=True)]
            )

    def _one_gather(self, group: tuple[int, ...], parts: tuple[Stored, ...], wanted: dict[str, Stored]) -> Memory:
        """The memory of one slot: ``parts`` of all members in order, each target tensor a run of them."""
        size, mine = parts[0].numel, group.index(self.rank)
        own = parts[mine]
        memory = Memory(size * len(parts), own, partial(_slice, mine * size, own), self._blank)
        self._trains[own.name] = memory
        for name in dict.fromkeys(part.regions[0].name for part in parts):
            run = [i for i, part in enumerate(parts) if part.regions[0].name == name]
            target, rows = wanted[name], parts[0].shape[0]
            for order, i in enumerate(run):
                at = _place_in(target.regions[0], parts[i].regions[0])
                if i != run[0] + order or at is None or at[0] != order * rows or any(at[1:]):
                    raise InputError(f"slices of {name} do not stand in the order of their ranks")
            self._generates[target.name] = _Part(memory, run[0] * size, target.shape)
        return memory

    def _lay_out_rest(self) -> None:
        for target in self.plan.target.stored(self.rank):
            if target.name in self._generates:
                continue
            free = (stored for name, stored in self._source.items() if name not in self._trains)
            inside = next((stored for stored in free if _lies_in(target, stored)), None)
            memory = Memory(target.numel, inside, partial(_view_in, target, inside), self._blank)
            self._rest.append(memory)
            self._generates[target.name] = _Part(memory, 0, target.shape)
            if inside is not None:
                self._trains[inside.name] = memory
        for name, stored in self._source.items():
            if name not in self._trains:
                self._trains[name] = Memory(stored.numel, stored, partial(_slice, 0, stored), self._blank)
                self._rest.append(self._trains[name])


def _slice(start: int, stored: Stored, flat: torch.Tensor) -> torch.Tensor:
    return flat[start : start + stored.numel].view(stored.shape)


def _lies_in(target: Stored, stored: Stored) -> bool:
    """Whether a training tensor can be a view of a target tensor."""
    if len(stored.regions) != 1 or len(target.regions) != 1:
        return False
    theirs, ours = target.regions[0], stored.regions[0]
    same = ours.name == theirs.name and ours.transposed == theirs.transposed
    return same and _place_in(theirs, ours) is not None


def _view_in(target: Stored, stored: Stored | None, flat: torch.Tensor) -> torch.Tensor:
    """That view."""
    assert stored is not None, "there is nothing of the training shard in it"
    ours = stored.regions[0]
    found = view_of(flat.view(target.shape), target.regions[0], ours.box)
    return found.t() if ours.transposed else found


def _place_in(outer: Region, inner: Region) -> tuple[int, ...] | None:
    """Where ``inner`` begins inside ``outer``, in the order in which local tensors lie; ``None`` if it is not in."""
    both: Box | None = intersection(outer.box, inner.box)
    if both != inner.box:
        return None
    at = tuple(i[0] - o[0] for i, o in zip(inner.box, outer.box, strict=True))
    return at[::-1] if inner.transposed else at
