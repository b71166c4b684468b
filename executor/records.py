"""Small records that travel between controller and ranks: what is asked for, and what is reported back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import array

COLLECTIVE_TIMEOUT_S = 600.0
"""How long a rank waits for the others in a collective, and when they meet, unless a run says otherwise."""


@dataclass(frozen=True)
class CallRequest:
    """One call as one rank sees it.

    Parameters
    ----------
    number
        Position in the controller's call order, from 0.
    key
        Name of the call in the dataflow, such as ``generate_sequences:greedy``.
    argument
        A value, or a ``FutureShare`` that the rank resolves itself.
    returns
        Whether the protocol reads this rank's output; else it is dropped.
    watched
        Whether the rank says which kernels ran.
    """

    number: int
    key: str
    role: str
    method: str
    argument: Any
    options: dict[str, Any] = field(default_factory=dict)
    returns: bool = True
    watched: bool = False


class Spent(NamedTuple):
    """What a worker has counted so far: seconds in collectives, seconds and bytes of copies for offload, both ways."""

    comm_s: float = 0.0
    host_s: float = 0.0
    host_bytes: int = 0


class WeightsMoved(NamedTuple):
    """Bytes of weights that a rank received and sent, of the buckets in which it converted them, and the most that it
    held at once of both layouts and of buckets (0 where it has memory for one of them alone)."""  # noqa: D205, D209

    received_bytes: int = 0
    sent_bytes: int = 0
    bucket_bytes: int = 0
    peak_bytes: int = 0


class Drafted(NamedTuple):
    """Drafts that an engine checked: of how many sequences' steps, and in how many the token of each position was kept.

    No position where the engine drafts nothing.
    """

    steps: int = 0
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class CallRecord:
    """What one rank did in one call. Times are wall clock in seconds since the epoch.

    ``start_s`` is when the rank had its inputs, ``device_s`` the time on the device from then to the end, by events.
    ``host_bytes`` were copied between device and host for offload, in ``host_s``; ``bucket_bytes`` held weights in
    conversion, ``weights_peak_bytes`` all weights of a transition at once. ``kernels``: seconds of each operation and
    kernel by name, of a watched call. ``row_tokens``: tokens of each row that the call answered, by which rows are
    dealt to ranks. ``drafted``: drafts of a call that generates.
    """

    number: int
    key: str
    api: str
    role: str
    pool: str
    rank: int
    start_s: float
    end_s: float
    comm_s: float
    bytes_in: int
    bytes_out: int
    peak_memory_bytes: int
    num_rows: int
    host_s: float = 0.0
    host_bytes: int = 0
    bucket_bytes: int = 0
    weights_peak_bytes: int = 0
    device_s: float = 0.0
    kernels: dict[str, float] = field(default_factory=dict)
    row_tokens: array.array[int] | None = None
    drafted: Drafted = field(default_factory=Drafted)


@dataclass(frozen=True)
class Recovery:
    """A failure that a run survived.

    Parameters
    ----------
    attempt
        The start that followed it, from 1.
    call, pool, rank, node, summary
        What failed, where, as ``errors.Failure`` says it.
    noticed_s
        When the controller knew, seconds since the epoch.
    down_s
        From then until models were loaded and the next call could be made.
    iteration
        The iteration that the run resumed with.
    lost_iterations
        Iterations that were through and are made again.
    num_devices
        Devices of the plan that it resumed with.
    """

    attempt: int
    call: str
    pool: str
    rank: int
    node: str
    summary: str
    noticed_s: float
    down_s: float
    iteration: int
    lost_iterations: int
    num_devices: int


@dataclass(frozen=True)
class Identity:
    """Who a process is: its pool, its rank there, the number of ranks."""

    pool: str
    rank: int
    num_ranks: int


@dataclass(frozen=True)
class Item:
    """An element of the list behind ``reference``."""

    reference: Any
    index: int


@dataclass(frozen=True)
class Submitted:
    """A call that one rank has been given: references to its output and its record.

    ``done`` is ready when the rank is through, and may be shared with other ranks of the call.
    """

    data: Any
    record: Any
    done: Any


def waited_on(record: Any) -> Any:
    """The reference that is ready when a record is there."""
    return record.reference if isinstance(record, Item) else record
