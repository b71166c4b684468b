"""Faults on purpose: what a run is told to suffer, so that noticing and going on can be tried on real workers.

``run.faults`` of a job file lists them; the fake engine takes the same records. Ranks that are told of none make their
calls without anything between.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from executor.batch import is_batch
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.records import CallRequest, Identity

FaultKind = Literal["error", "kill", "delay", "hang", "nan", "drop", "flip"]
Index = Annotated[int, Field(ge=0)]
HANG_S = 86_400.0
LOADING = "init_model"
"""The call in which ranks of a pool connect to one another."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Fault:
    """On ``rank`` of ``role``, the ``call``-th time (from 0) that ``api`` runs in the run's ``attempt``-th start.

    Parameters
    ----------
    kind
        ``error``: the call raises. ``kill``: the process ends ``delay_s`` into the call, or later if the call is
        through by then. ``delay``: the call begins ``delay_s`` later. ``hang``: it never ends. ``nan``: the real
        columns that it reads hold no numbers, or those that it returns where it reads none. ``drop``: connections to
        the pool's other ranks are shut (not NCCL's). ``flip``: one bit of the first weight is another, before the call.
    pool
        Where the role has two pools (generation apart), which of them; else any.
    """

    role: str
    api: str
    call: Index = 0
    rank: Index = 0
    kind: FaultKind = "error"
    delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    attempt: Index = 0
    pool: str | None = None


class InjectedFaultError(RuntimeError):
    """An error that a ``Fault`` asked for."""


class Due:
    """Counts calls and says which faults strike now."""

    def __init__(self, rank: int, faults: tuple[Fault, ...], pool: str | None = None) -> None:
        self._mine = [f for f in faults if f.rank == rank and (f.pool is None or f.pool == pool)]
        self._seen: dict[tuple[str, str], int] = {}

    def now(self, role: str, api: str) -> list[Fault]:
        """The faults of this call; asking counts it."""
        number = self._seen.get((role, api), 0)
        self._seen[role, api] = number + 1
        return [f for f in self._mine if (f.role, f.api, f.call) == (role, api, number)]


class FaultInjector:
    """Makes the calls of one rank, and lets its faults happen in them. Takes the place of ``worker.invoke``."""

    def __init__(self, identity: Identity, faults: tuple[Fault, ...], invoke: Callable[..., Any]) -> None:
        self._due, self._invoke = Due(identity.rank, faults, identity.pool), invoke
        self._peers: set[int] = set()

    def __call__(self, worker: Any, request: CallRequest, inputs: tuple[Any, ...]) -> Any:
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

    def _before(self, fault: Fault, worker: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if fault.kind == "nan":
            return tuple(without_numbers(value) if is_batch(value) else value for value in inputs)
        if fault.kind == "flip":
            flip_bit(weights_of(getattr(worker, "engine", None), fault))
        elif fault.kind == "drop":
            _shut(self._peers)
        else:
            strike(fault)
        return inputs


def strike(fault: Fault) -> None:
    """What needs no worker: wait, end, fail."""
    if fault.kind == "delay":
        time.sleep(fault.delay_s)
    elif fault.kind == "hang":
        time.sleep(HANG_S)
    elif fault.kind == "kill":
        if fault.delay_s == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(fault.delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif fault.kind == "error":
        raise InjectedFaultError(f"{fault.role}.{fault.api} number {fault.call} was told to fail on rank {fault.rank}")
    else:
        raise InputError(f"a fake engine has no weights and no connections for a fault of kind {fault.kind}")


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


def weights_of(engine: Any, fault: Fault) -> Mapping[str, torch.Tensor]:
    """An engine's own weights, to be changed in place; ``InputError`` where it has none at hand."""
    trainer = getattr(engine, "trainer", engine)
    flat = getattr(trainer, "flat", None)
    weights: Mapping[str, torch.Tensor] = flat.weights if flat is not None else {}
    if flat is None and hasattr(trainer, "tensors"):
        weights = trainer.tensors()
    if not weights or not any(weight.untyped_storage().nbytes() for weight in weights.values()):
        raise InputError(f"{fault.role} has no weights on its device to flip a bit of when {fault.api} begins")
    return weights


def _open_sockets() -> set[int]:
    """File descriptors of this process that are sockets of a network (not of this machine's file system)."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode) and _is_connected(int(name)):
                found.add(int(name))
        except OSError:  # the descriptor of the listing itself, or one that closed meanwhile
            continue
    return found


def _is_connected(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as found:
        return found.family in (socket.AF_INET, socket.AF_INET6) and bool(found.getpeername())


def _shut(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            found.shutdown(socket.SHUT_RDWR)
