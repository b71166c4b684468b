"""The seam between the controller and processes: what a launcher must do. Ray and in-process ones implement it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executor.controller.pools import ResourcePool
    from executor.records import CallRecord, CallRequest, Submitted


class Launcher(Protocol):
    """Starts ranks, hands them calls, moves references. A rank runs its calls one by one in the order given."""

    @property
    def num_devices(self) -> int:
        """Ranks with a device of their own that can be started."""

    @property
    def uses_gpus(self) -> bool:
        """Whether those devices are GPUs; else they are CPU processes."""

    @property
    def kinds(self) -> Mapping[str, int]:
        """Devices by kind, where the nodes say what they have; empty where none does."""

    @property
    def num_nodes(self) -> int:
        """Machines that ranks can start on."""

    def start_pool(self, pool: ResourcePool) -> list[Any]:
        """Start the ranks of a pool, in rank order; ``InfeasibleError`` if they find no place."""

    def connect(self, ranks: Sequence[Any]) -> str | None:
        """Once all ``ranks`` are there: choose how columns travel between them; what to tell the user of it."""

    def node_of(self, rank: Any) -> str:
        """The name of the node that a rank was started on; empty where there is but this process."""

    def lost_among(self, ranks: Sequence[Any]) -> int:
        """The first of ``ranks`` whose process is gone; the first of all if none is."""

    def tell(self, ranks: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a set-up method on each rank with its own arguments; wait and return what they return."""

    def submit(self, ranks: Sequence[Any], requests: Sequence[CallRequest]) -> list[Submitted]:
        """Hand a call to ranks of one pool; at once return references to each one's output and record."""

    def ready(self, references: Sequence[Any], timeout_s: float | None) -> list[Any]:
        """Wait until one of ``references`` is there (or failed) or the time is over; return those that are."""

    def records(self, done: Any) -> list[CallRecord]:
        """Records of the ranks that are through; raises what a rank raised."""

    def get(self, reference: Any) -> Any:
        """The value behind a reference that is ready; raises what the rank raised."""

    def put(self, value: Any) -> Any:
        """A reference to a value of the controller."""

    def clear(self) -> None:
        """End every process that this launcher started, so that others can be started on what is left."""

    def stop(self) -> None:
        """Clear, and let go of what the processes ran on. Safe to call twice."""
