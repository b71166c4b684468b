"""A rank inside a Ray actor, and how values are read from Ray's object store or from the rank that kept them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executor.batch import is_wire
from executor.cores import stay_on_core
from executor.launch import direct
from executor.records import Identity, Item, waited_on
from executor.worker.worker import RankProcess

if TYPE_CHECKING:
    from collections.abc import Sequence


class RankActor(RankProcess):
    """A rank inside a Ray actor."""

    def __init__(self, identity: Identity) -> None:
        import ray

        super().__init__(identity, lambda references: fetched(ray, references))
        self._transport, self._least_bytes = "", 0

    def node(self) -> str:
        """The node that this rank runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def prepare(self) -> None:
        """Import what every role needs, while the next pools are started: it takes a process seconds."""
        import tensordict  # noqa: F401

        import executor.worker.roles  # noqa: F401

    def lacks_transport(self) -> bool:
        """Whether others cannot read from this rank directly, or it from them."""
        return not direct.is_installed()

    def keep_columns(self, transport: str, least_bytes: int) -> None:
        """From now on keep outputs of ``least_bytes`` here, to be read by ``transport``; none where it is empty."""
        self._transport, self._least_bytes = transport, least_bytes

    def _kept(self, stored: Any) -> Any:
        if not self._transport or not is_wire(stored):
            return stored
        import ray

        return direct.held(ray, stored, self._least_bytes, self._transport)

    def stay_on_core(self, number: int) -> None:
        """Compute on one core of this machine."""
        stay_on_core(number)

    def rename(self, identity: Identity, host: str) -> None:
        """Take a rank number, and the address of this node, once every rank's node is known."""
        self.identity, self.host = identity, host


def fetched(ray: Any, references: Sequence[Any]) -> list[Any]:
    """Values behind references, and behind elements of lists; an element that is a reference is looked through."""
    lists = list(dict.fromkeys(waited_on(reference) for reference in references))
    found = dict(zip(lists, ray.get(lists), strict=True))
    values = [found[r.reference][r.index] if isinstance(r, Item) else found[r] for r in references]
    inner = iter(ray.get([value for value in values if isinstance(value, ray.ObjectRef)]))
    return direct.opened(ray, [next(inner) if isinstance(value, ray.ObjectRef) else value for value in values])
