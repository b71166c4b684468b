"""States that wait in host memory while no call uses them: the ``offload`` of a plan.

A state leaves its device by a copy, and its storage there is given back; views of it stay valid and come back to life
with it. What has not changed since it last left needs no copy to leave again. Where the device is the CPU itself the
copies are between two places of the same memory, and still made.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from executor.device_time import DeviceSeconds
from executor.records import Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from executor.collectives import CommClock

    Tensors = Callable[[], list[torch.Tensor]]


class HostMemory:
    """Moves named states of one rank; counts bytes and seconds of the copies, both ways.

    Parameters
    ----------
    states
        The tensors of each state, each alone in its storage; asked again whenever a state leaves, since an optimizer
        makes some of its own late.
    away
        Names of those that wait on the host.
    """

    def __init__(self, states: Mapping[str, Tensors], away: Collection[str]) -> None:
        self._states, self._away = dict(states), frozenset(away)
        self._copies: dict[str, list[torch.Tensor]] = {}
        self._gone: dict[str, list[torch.Tensor]] = {}
        self._holders: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._clock, self.num_bytes = DeviceSeconds(), 0

    @property
    def seconds(self) -> float:
        """What copies have taken so far."""
        return self._clock.seconds

    def send_away(self) -> None:
        """Once after loading: everything that waits on the host goes there."""
        for name in self._away:
            self._leave(name, changed=True)

    @contextmanager
    def present(self, *names: str, changed: bool = False) -> Iterator[None]:
        """Have states on the device inside the block; ``changed`` if it writes to them."""
        for name in names:
            self.hold(name)
        yield  # after an error the run ends: nothing needs to be in its place
        for name in names:
            self.let_go(name, changed=changed)

    def hold(self, name: str) -> None:
        """Have a state on the device until as many ``let_go`` as there were holds."""
        if name in self._away:
            self._holders[name] += 1
            if self._holders[name] == 1:
                self._come(name)

    def let_go(self, name: str, *, changed: bool = False) -> None:
        """The end of a ``hold``; ``changed`` if the state was written to."""
        if name not in self._away:
            return
        if changed:
            self._changed.add(name)
        self._holders[name] -= 1
        if not self._holders[name]:
            self._leave(name, changed=name in self._changed)
            self._changed.discard(name)

    def _come(self, name: str) -> None:
        with self._counted(self._copies[name]):
            for tensor, copy in zip(self._gone[name], self._copies[name], strict=True):
                tensor.untyped_storage().resize_(copy.untyped_storage().nbytes())
                tensor.copy_(copy, non_blocking=True)

    def _leave(self, name: str, *, changed: bool) -> None:
        self._gone[name] = tensors = self._states[name]()
        if changed:
            known = self._copies.setdefault(name, [])
            if [copy.shape for copy in known] != [tensor.shape for tensor in tensors]:
                known[:] = [_room_on_host(tensor) for tensor in tensors]
            with self._counted(tensors):
                for copy, tensor in zip(self._copies[name], tensors, strict=True):
                    copy.copy_(tensor.detach(), non_blocking=True)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)

    @contextmanager
    def _counted(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """Copies of ``tensors``: nobody waits for them, since what comes after is in the same stream."""
        with self._clock.running():
            yield
        self.num_bytes += sum(t.numel() * t.element_size() for t in tensors)


class OnHost:
    """The part of a trainer that counts: time in collectives by its ``clock``, copies for offload by its ``host``."""

    clock: CommClock
    host: HostMemory

    @property
    def spent(self) -> Spent:
        """What our own collectives and offload have taken so far; an engine's collectives are part of its passes."""
        return Spent(self.clock.seconds, self.host.seconds, self.host.num_bytes)

    def present(self) -> AbstractContextManager[None]:
        """Have the parameters on the device inside the block."""
        return self.host.present("parameters")


def spans_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """One flat tensor over each storage that ``tensors`` lie in: what leaves, where an engine packs its own buffers."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in found:  # noqa: SLF001 - its identity while it lives
            num = storage.nbytes() // tensor.element_size()
            found[storage._cdata] = tensor.new_empty(0).set_(storage, 0, (num,), (1,))  # noqa: SLF001
    return list(found.values())


def _room_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for a copy, pinned beside a GPU; kept, since the system takes seconds to pin gigabytes."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
