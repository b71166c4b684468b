"""Columns straight from the memory of the rank that made them, by Ray Direct Transport; else by Ray's object store.

Of Ray's transports only a one-sided one will do: a reader takes what it needs when it knows what that is, while the
rank that holds it runs its next call. Ray's gloo and nccl push whole outputs to ranks that are named beforehand, and
its gloo takes the process's default group, which a pool's own ranks need. NIXL reads host memory of any node, by
shared memory, TCP or RDMA, whichever there is. An output is one buffer: one registration and one transfer.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.batch import Wire

    Transport = Literal["auto", "store", "direct"]

NIXL = "nixl"
"""Ray's name of the transport, and that of the package which it needs."""
ON_LOOPBACK = ("UCX_NET_DEVICES", "lo")
"""What keeps NIXL's sockets inside a machine, in the environment."""
ALIGNMENT = 16
"""Columns begin at multiples of it in their buffer."""
LEAST_BYTES = 1 << 20
"""What is smaller goes with Ray's own messages, or through its store: a transfer of its own costs more."""


@dataclass(frozen=True)
class Column:
    """Where a column lies in its buffer; ``dtype`` is NumPy's name, ``torch_dtype`` that of the tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    torch_dtype: str
    first: int


@dataclass(frozen=True)
class Held:
    """What travels in place of columns that stay with the rank that made them: a reference to their buffer."""

    columns: tuple[Column, ...]
    buffer: Any


def is_installed() -> bool:
    """Whether this process can send and read directly: a Ray that borrows such references, and NIXL."""
    if importlib.util.find_spec(NIXL) is None:
        return False
    ray = importlib.util.find_spec("ray.experimental")
    return ray is not None and importlib.util.find_spec("ray.experimental.rdt") is not None


def is_wanted(asked: Transport, num_nodes: int) -> bool:
    """Whether columns go directly if all machines can.

    On one node the store is memory that all ranks share: nobody copies a column to read some of its rows.
    """
    return asked == "direct" or (asked == "auto" and num_nodes > 1)


def chosen(asked: Transport, num_nodes: int, lacking: Sequence[str]) -> tuple[bool, str | None]:
    """Whether columns go directly, and what to tell the user of it.

    ``lacking`` names the machines that cannot; ``InputError`` where it is asked for all the same.
    """
    if not is_wanted(asked, num_nodes):
        return False, None
    install = f"'pip install {NIXL}' beside Ray 2.60 on {', '.join(dict.fromkeys(lacking))}"
    if lacking and asked == "direct":
        raise InputError(f"run.transport direct: {NIXL} is missing; {install}, or leave run.transport out")
    if lacking:
        return False, f"columns go through Ray's object store; with {install} ranks read them from each other"
    return True, f"columns go from rank to rank by Ray Direct Transport ({NIXL})"


def held(ray: Any, wire: Wire, least_bytes: int, transport: str = NIXL) -> Wire | Held:
    """``wire`` kept in a buffer of this process, where it has ``least_bytes``; as it is where it has fewer."""
    import torch

    columns, end = [], 0
    for name, (values, torch_dtype) in wire.items():
        columns.append(Column(name, values.shape, values.dtype.str, torch_dtype, end))
        end += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
    if not end or end < least_bytes:
        return wire
    buffer = torch.zeros(end, dtype=torch.uint8)
    for column in columns:  # copied: a role may write into its own tensors in the next call
        values = wire[column.name][0]
        buffer.numpy()[column.first : column.first + values.nbytes] = values.reshape(-1).view("u1")
    return Held(tuple(columns), ray.put([buffer], _tensor_transport=transport))


def opened(ray: Any, values: Sequence[Any]) -> list[Any]:
    """``values`` with the columns of those that are ``Held`` elsewhere, read side by side."""
    wanted = list(dict.fromkeys(value.buffer for value in values if isinstance(value, Held)))
    if not wanted:
        return list(values)
    found = dict(zip(wanted, (buffers[0] for buffers in ray.get(wanted)), strict=True))
    for reference in wanted:
        _forget(ray, reference)
    return [_wire(value, found[value.buffer]) if isinstance(value, Held) else value for value in values]


def _wire(value: Held, buffer: Any) -> Wire:
    import numpy as np

    whole = buffer.numpy()
    return {c.name: (np.ndarray(c.shape, np.dtype(c.dtype), whole.data, c.first), c.torch_dtype) for c in value.columns}


def _forget(ray: Any, reference: Any) -> None:
    """Drop what Ray keeps of a buffer that another process owns: it never does (its issue 57962), a note a read."""
    manager = ray._private.worker.global_worker.rdt_manager  # noqa: SLF001 - there is no other way to it
    if not manager.rdt_store.has_object(reference.hex()):
        manager._managed_rdt_metadata.pop(reference.hex(), None)  # noqa: SLF001
