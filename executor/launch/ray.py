"""Ray launcher: every rank is an actor, every pool a placement group; data goes through Ray's object store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from executor.launch import direct
from executor.launch.joined_cluster import JoinedCluster
from executor.launch.own_cluster import LOOK_S, OwnCluster
from executor.launch.placement import first_split
from executor.launch.ray_rank import RankActor, fetched
from executor.launch.relay import Head, Relay, RelayLine
from executor.launch.reservation import Reservations
from executor.records import Identity, Submitted
from profiles.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.controller.pools import ResourcePool
    from executor.launch.direct import Transport
    from executor.records import CallRecord, CallRequest

ASKED_S = 1.0
"""How long a rank that is asked whether it lives may take to answer."""
FAN_OUT = 32
"""Ranks that the controller speaks to itself, and ranks of a relay where a pool has more."""


class RayLauncher:
    """Starts ranks on a Ray cluster: the one at ``address``, or one of our own on this machine.

    A device is a GPU where the cluster has any, else one of ``cpu_ranks`` slots (on a cluster that is not ours: its
    CPUs); with ``pin_cores`` ranks of slots stay on a core each. Nodes may declare a custom resource by the name of
    their device (``kinds``); then a pool goes to nodes of its
    kind. The object store of our own cluster holds batches of ``batch_bytes``. Raises ``InputError`` where Ray is
    missing or the address answers nothing.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpu_ranks: int = 8,
        num_gpus: int | None = None,
        batch_bytes: int = 0,
        transport: Transport = "auto",
        pin_cores: bool = False,
    ) -> None:
        self._ray = _import_ray()
        self._owns_cluster = False
        self.own_cluster: OwnCluster | None = None
        self._actors: list[Any] = []
        self._lines: dict[int, tuple[RelayLine, int]] = {}
        self._nodes: dict[int, str] = {}
        self.transport, self._pin_cores = transport, pin_cores
        if not self._ray.is_initialized():
            self._connect(address, cpu_ranks, num_gpus, batch_bytes)
        elif address is not None and self._ray.get_runtime_context().gcs_address != address:
            here = self._ray.get_runtime_context().gcs_address
            raise InputError(f"this process is connected to the Ray cluster at {here}, not to {address}")
        self._cluster = self.own_cluster or JoinedCluster(self._ray)
        self.uses_gpus = self._ray.cluster_resources().get("GPU", 0) >= 1
        self._reservations = Reservations(self._ray, "GPU" if self.uses_gpus else "CPU")

    @property
    def num_devices(self) -> int:
        """Devices of the nodes that are alive now."""
        return self._reservations.num_of(None)

    @property
    def kinds(self) -> dict[str, int]:
        """Devices of each kind that the cluster declares as a custom resource, on the nodes that are alive now."""
        return self._reservations.kinds

    @property
    def num_nodes(self) -> int:
        """Nodes that are alive now."""
        return sum(node["Alive"] for node in self._ray.nodes())

    def _connect(self, address: str | None, cpu_ranks: int, num_gpus: int | None, batch_bytes: int) -> None:
        if address:
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError) as error:
                raise InputError(f"no Ray cluster answers at {address}: {error}") from error
            self._owns_cluster = True  # our connection to it: shutdown leaves somebody else's cluster running
            return
        self.own_cluster = OwnCluster(self._ray, cpu_ranks, num_gpus, batch_bytes)
        self.own_cluster.start()
        self._owns_cluster = True

    def start_pool(self, pool: ResourcePool) -> list[Any]:
        ranks = self._start_ranks(pool)
        if len(ranks) > FAN_OUT:
            for first in range(0, len(ranks), FAN_OUT):
                self._add_relay(pool, list(enumerate(ranks))[first : first + FAN_OUT])
        return ranks

    def _add_relay(self, pool: ResourcePool, ranks: list[tuple[int, Any]]) -> None:
        actor = self._ray.remote(Relay).options(num_cpus=0).remote(pool.name, ranks)
        self._actors.append(actor)
        line = RelayLine(actor)
        for place, (_, rank) in enumerate(ranks):
            self._lines[id(rank)] = (line, place)

    def _start_ranks(self, pool: ResourcePool) -> list[Any]:
        """Actors of one placement group, numbered so that consecutive ranks share a node."""
        actor_class = self._ray.remote(RankActor)
        options: list[dict[str, Any]] = [{"num_cpus": 0}]
        if pool.on_device:
            options = self._reservations.options_of(pool)
        actors = [
            actor_class.options(**options[i], max_restarts=0).remote(Identity(pool.name, i, pool.num_ranks))
            for i in range(pool.num_ranks)
        ]
        self._actors += actors
        nodes = self._all_of([actor.node.remote() for actor in actors])
        order = sorted(range(len(actors)), key=lambda i: (nodes.index(nodes[i]), i))
        ranks, on = [actors[i] for i in order], [nodes[i] for i in order]
        self._require_together(pool, on)
        addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in self._ray.nodes()}
        for rank, node in zip(ranks, on, strict=True):
            self._nodes[id(rank)] = f"{addresses.get(node, 'unknown')} ({node[:8]})"
        given = [(Identity(pool.name, i, pool.num_ranks), addresses[node]) for i, node in enumerate(on)]
        self.tell(ranks, "rename", given)
        if self._pin_cores and pool.on_device and not self.uses_gpus:
            self.tell(ranks, "stay_on_core", [(pool.first_device + i,) for i in range(len(ranks))])
        for rank in ranks:
            rank.prepare.remote()
        return ranks

    def connect(self, ranks: Sequence[Any]) -> str | None:
        self._require_daemons()
        num_nodes = self.num_nodes
        lacking = self._without_transport(ranks) if direct.is_wanted(self.transport, num_nodes) else []
        goes_directly, note = direct.chosen(self.transport, num_nodes, lacking)
        if goes_directly:
            if self.own_cluster is not None:
                os.environ.setdefault(*direct.ON_LOOPBACK)  # as its processes have it
            least_bytes = direct.LEAST_BYTES if self.transport == "auto" else 1
            self.tell(ranks, "keep_columns", [(direct.NIXL, least_bytes)] * len(ranks))
        return note

    def _without_transport(self, ranks: Sequence[Any]) -> list[str]:
        """Machines of ranks, and this one, that cannot send columns directly."""
        lacks = self.tell(ranks, "lacks_transport", [()] * len(ranks))
        names = [self._nodes.get(id(rank), "a node") for rank, it_lacks in zip(ranks, lacks, strict=True) if it_lacks]
        return names if direct.is_installed() else [*names, "this machine"]

    def _require_together(self, pool: ResourcePool, nodes: Sequence[str]) -> None:
        """Raise ``InfeasibleError`` where ranks that a tensor is cut over have come to lie on several nodes."""
        first = first_split(nodes, pool.together) if pool.on_device else None
        if first is not None:
            raise InfeasibleError(
                f"pool {pool.name}: ranks {first} to {first + pool.together - 1} cut the same tensors and were started "
                "on several nodes"
            )

    def node_of(self, rank: Any) -> str:
        return self._nodes.get(id(rank), "")

    def lost_among(self, ranks: Sequence[Any]) -> int:
        for number, rank in enumerate(ranks):
            try:
                self._ray.get(rank.node.remote(), timeout=ASKED_S)
            except self._ray.exceptions.RayError:
                return number
        return 0

    def tell(self, ranks: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._require_daemons()
        calls = [getattr(rank, method).remote(*args) for rank, args in zip(ranks, arguments, strict=True)]
        return self._all_of(calls)

    def submit(self, ranks: Sequence[Any], requests: Sequence[CallRequest]) -> list[Submitted]:
        self._require_daemons()
        if not ranks or id(ranks[0]) not in self._lines:
            return [self._submit(rank, request) for rank, request in zip(ranks, requests, strict=True)]
        asked: dict[RelayLine, list[tuple[int, Any, bool]]] = {}
        for rank, request in zip(ranks, requests, strict=True):
            line, place = self._lines[id(rank)]
            asked.setdefault(line, []).append((place, request.argument, request.returns))
        first = requests[0]
        head = Head(first.number, first.key, first.role, first.method, first.options)
        return [submitted for line, some in asked.items() for submitted in line.submit(head, some)]

    def _submit(self, rank: Any, request: CallRequest) -> Submitted:
        data, record = rank.call.options(num_returns=2).remote(request)
        return Submitted(data, record, record)

    def ready(self, references: Sequence[Any], timeout_s: float | None) -> list[Any]:
        self._require_daemons()
        done, rest = self._waited(list(references), 1, timeout_s)
        if rest and done:
            more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
            done += more
        return list(done)

    def _waited(self, references: list[Any], count: int, timeout_s: float | None) -> tuple[list[Any], list[Any]]:
        """``ray.wait`` in short pieces: where a daemon of the cluster is gone it never ends, or ends this process."""
        left_s = float("inf") if timeout_s is None else timeout_s
        while True:
            done, rest = self._ray.wait(references, num_returns=count, timeout=min(left_s, LOOK_S))
            left_s -= LOOK_S
            if len(done) >= count or left_s <= 0:
                return done, rest
            self._require_daemons()

    def _require_daemons(self) -> None:
        """Before anything is asked of Ray: it ends this process, without a word, where the object store is gone."""
        self._cluster.require_daemons()

    def _all_of(self, references: Sequence[Any]) -> list[Any]:
        """Wait for all of some references and read them."""
        self._waited(list(references), len(references), None)
        return list(self._ray.get(list(references)))

    def records(self, done: Any) -> list[CallRecord]:
        found = self.get(done)
        return found if isinstance(found, list) else [found]

    def get(self, reference: Any) -> Any:
        self._require_daemons()
        try:
            return fetched(self._ray, [reference])[0]
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None

    def put(self, value: Any) -> Any:
        self._require_daemons()
        return self._ray.put(value)

    def clear(self) -> None:
        """Kill our actors and free their placement groups; the cluster stays for others to be started.

        One of our own that lost a daemon is started anew.
        """
        if self.own_cluster is not None and self.own_cluster.lost_daemon() is not None:
            self.own_cluster.start_anew()
        else:
            for actor in self._actors:
                self._ray.kill(actor, no_restart=True)
            self._reservations.give_back()
        self._reservations.forget()
        self._actors, self._lines, self._nodes = [], {}, {}

    def stop(self) -> None:
        """Clear, and shut down a cluster of our own."""
        if not self._ray.is_initialized():
            return
        if self.own_cluster is None or self.own_cluster.lost_daemon() is None:
            self.clear()
        if self._owns_cluster:
            self._ray.shutdown()


def _import_ray() -> Any:
    # read by Ray when it is imported: no usage reports, and no token file in the home folder
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of calls behind one that failed, which is reported
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("this plan needs several processes, which need Ray: pip install 'hybridmap[run]'") from error
    return ray
