"""How faults happen in a rank's calls. Ranks that are given none make their calls without anything between."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from executor.batch import is_batch
from executor.faults import Due, strike
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.faults import Fault
    from executor.records import CallRequest, Identity
    from executor.worker.worker import Worker

LOADING = "init_model"
"""The call in which ranks of a pool connect to one another."""


class FaultInjector:
    """Makes the calls of one rank, and lets its faults happen in them. Takes the place of ``worker.invoke``."""

    def __init__(self, identity: Identity, faults: tuple[Fault, ...], invoke: Callable[..., Any]) -> None:
        self._due, self._invoke = Due(identity.rank, faults, identity.pool), invoke
        self._peers: set[tuple[int, int]] = set()

    def __call__(self, worker: Worker, request: CallRequest, inputs: tuple[Any, ...]) -> Any:
        """The call's own output, unless a fault says otherwise."""
        faults = self._due.now(request.role, request.method)
        for fault in faults:
            inputs = self._before(fault, worker, inputs)
        before = _open_sockets()
        output = self._invoke(worker, request, inputs)
        if request.method == LOADING:
            self._peers |= _open_sockets() - before
        for fault in faults:
            if fault.kind == "nan" and is_batch(output):
                output = without_numbers(output)
        return output

    def _before(self, fault: Fault, worker: Worker, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if fault.kind == "nan":
            return tuple(without_numbers(value) if is_batch(value) else value for value in inputs)
        if fault.kind == "flip":
            flip_bit(weights_of(worker, fault))
        elif fault.kind == "drop":
            _shut(self._peers)
        else:
            strike(fault)
        return inputs


def without_numbers(batch: TensorDict) -> TensorDict:
    """A copy in which every real-valued column is NaN."""
    changed = batch.clone()
    for name, column in batch.items():
        if column.is_floating_point():
            changed[name] = column.new_full(column.shape, float("nan"))
    return changed


def flip_bit(weights: Mapping[str, torch.Tensor]) -> None:
    """Change the highest bit of the first element's fraction in the first weight by name."""
    import torch

    weight = weights[min(weights)].detach()
    of_type = {4: (torch.int32, 1 << 22), 2: (torch.int16, 1 << 6)}
    kind, bit = of_type[weight.element_size()]
    bits = weight.view(kind).view(-1)
    bits[0] ^= bit


def weights_of(worker: Worker, fault: Fault) -> Mapping[str, torch.Tensor]:
    """A worker's own weights, to be changed in place; ``InputError`` where there are none at hand."""
    from executor.worker.roles import ModelWorker

    trainer = worker.made.trainer if isinstance(worker, ModelWorker) else None
    weights = trainer.lasting_weights() if trainer is not None else {}
    if not any(weight.untyped_storage().nbytes() for weight in weights.values()):
        raise InputError(f"{fault.role} has no weights on its device to flip a bit of when {fault.api} begins")
    return weights


def _open_sockets() -> set[tuple[int, int]]:
    """Connected sockets of this process to other ones over a network: file descriptor and inode, which is its name."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
            if stat.S_ISSOCK(status.st_mode) and _is_connected(int(name)):
                found.add((int(name), status.st_ino))
        except OSError:  # the descriptor of the listing itself, one that closed meanwhile, one that only listens
            continue
    return found


def _is_connected(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as found:
        return found.family in (socket.AF_INET, socket.AF_INET6) and bool(found.getpeername())


def _shut(sockets: set[tuple[int, int]]) -> None:
    copies = []
    for descriptor, _ in sockets & _open_sockets():
        with suppress(OSError):
            copies.append(socket.socket(fileno=os.dup(descriptor)))
    for copy in copies:  # the first one that ends makes its owner close the others
        with copy, suppress(OSError):
            copy.shutdown(socket.SHUT_RDWR)
