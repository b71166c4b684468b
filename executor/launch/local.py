"""In-process launcher: every pool is one rank and lives in this process. Needs no Ray.

Calls run when they are made, in call order, so nothing overlaps; scripts, workers and records are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.records import Identity, Submitted
from executor.worker.worker import RankProcess
from profiles.errors import InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.controller.pools import ResourcePool
    from executor.records import CallRecord, CallRequest


@dataclass(frozen=True, eq=False)
class LocalReference:
    """A value, or the error in its place. Compared by identity, as references are."""

    value: Any = None
    error: Exception | None = None


class LocalLauncher:
    """One process, one rank a pool. ``num_devices`` counts pools here: each is one rank of this process."""

    def __init__(self, num_devices: int = 8) -> None:
        self.num_devices = num_devices
        self.kinds: dict[str, int] = {}
        self.num_nodes = 1

    @property
    def uses_gpus(self) -> bool:
        import torch

        return torch.cuda.is_available()

    def start_pool(self, pool: ResourcePool) -> list[RankProcess]:
        if pool.num_ranks != 1:
            raise InfeasibleError(
                f"pool {pool.name} has {pool.num_ranks} ranks; without Ray a pool is one process: "
                "install ray, or --scale-down to one device a pool",
                fewest_gpus=pool.num_ranks,
            )
        return [RankProcess(Identity(pool.name, 0, 1), self._fetch)]

    def connect(self, ranks: Sequence[Any]) -> str | None:
        return None

    def node_of(self, rank: Any) -> str:
        return ""

    def lost_among(self, ranks: Sequence[Any]) -> int:
        return 0

    def tell(self, ranks: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(rank, method)(*args) for rank, args in zip(ranks, arguments, strict=True)]

    def submit(self, ranks: Sequence[RankProcess], requests: Sequence[CallRequest]) -> list[Submitted]:
        return [self._submit(rank, request) for rank, request in zip(ranks, requests, strict=True)]

    def _submit(self, rank: RankProcess, request: CallRequest) -> Submitted:
        try:
            output, record = map(LocalReference, rank.call(request))
        except Exception as error:
            output = record = LocalReference(error=error)
        return Submitted(output, record, record)

    def ready(self, references: Sequence[LocalReference], timeout_s: float | None) -> list[LocalReference]:
        return list(references)

    def records(self, done: LocalReference) -> list[CallRecord]:
        return [self.get(done)]

    def get(self, reference: LocalReference) -> Any:
        if reference.error is not None:
            raise reference.error
        return reference.value

    def put(self, value: Any) -> LocalReference:
        return LocalReference(value)

    def clear(self) -> None:
        """Nothing was started."""

    def stop(self) -> None:
        """Nothing was started."""

    def _fetch(self, references: Sequence[LocalReference]) -> list[Any]:
        return [self.get(reference) for reference in references]
