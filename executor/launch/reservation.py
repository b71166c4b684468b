"""Devices of a Ray cluster that pools hold: a bundle for each tensor-parallel group, on the nodes of the plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from executor.launch.placement import Node, num_groups, planned_nodes
from profiles.errors import InfeasibleError
from profiles.store import device_names

if TYPE_CHECKING:
    from executor.controller.pools import ResourcePool

PLACEMENT_TIMEOUT_S = 60.0
"""For the devices of a pool; a sixth of it for the nodes that the plan means, before others are taken."""
LOOK_S = 1.0
"""How often to look whether devices that are waited for still exist."""
NODE_LABEL = "ray.io/node-id"
"""Ray's own label of a node."""


class Reservations:
    """Placement groups of the pools of one launcher; ``device`` is Ray's resource that ranks take, GPU or CPU."""

    def __init__(self, ray: Any, device: str) -> None:
        self._ray, self.device = ray, device
        self._groups: list[Any] = []

    @property
    def kinds(self) -> dict[str, int]:
        """Devices of each kind that the cluster declares as a custom resource, on the nodes that are alive now."""
        resources = self._ray.cluster_resources()
        return {name: int(resources[name]) for name in device_names() if name in resources}

    @property
    def _num_nodes(self) -> int:
        return sum(node["Alive"] for node in self._ray.nodes())

    def give_back(self) -> None:
        """Free what is held."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:
            remove_placement_group(group)

    def forget(self) -> None:
        """Hold nothing: it was given back, or the cluster is another one."""
        self._groups = []

    def options_of(self, pool: ResourcePool) -> list[dict[str, Any]]:
        """Reserve a bundle per tensor-parallel group, on nodes of the pool's kind; options that put ranks into them."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        named = {pool.kind: 1.0} if pool.kind in self.kinds else {}
        nodes, num = self._nodes_of(next(iter(named), None)), pool.num_ranks // pool.together
        if num_groups(pool.together, nodes) < num and self.num_of(next(iter(named), None)) >= pool.num_ranks:
            sizes = ", ".join(str(node.num_devices) for node in nodes)
            raise InfeasibleError(
                f"pool {pool.name} has {num} groups of {pool.together} devices that must share a node; the nodes have "
                f"{sizes} devices, which hold {num_groups(pool.together, nodes)}. Plan for what each node has"
            )
        unit = {self.device: 1.0, **named}
        bundles = [{name: pool.together * amount for name, amount in unit.items()}] * num
        where = planned_nodes(pool.first_device, pool.num_ranks, pool.together, nodes)
        group = self._reserved(pool, bundles, where, next(iter(named), None))
        share: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0} if self.device == "GPU" else {"num_cpus": 1}
        bundle_of = [i // pool.together for i in range(pool.num_ranks)]
        strategies = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) for i in bundle_of]
        return [share | {"resources": named, "scheduling_strategy": strategy} for strategy in strategies]

    def _reserved(
        self, pool: ResourcePool, bundles: list[dict[str, float]], where: list[str] | None, kind: str | None
    ) -> Any:
        """A placement group: on the nodes that the plan means, or wherever it fits if others hold some of these."""
        from ray.util.placement_group import placement_group, remove_placement_group

        began_s = time.monotonic()
        if where is not None and self._num_nodes > 1:
            labels = [{NODE_LABEL: name} for name in where]
            group = placement_group(bundles, strategy="PACK", bundle_label_selector=labels)
            if group.wait(PLACEMENT_TIMEOUT_S / 6):
                self._groups.append(group)
                return group
            remove_placement_group(group)
        group = placement_group(bundles, strategy="PACK")
        self._groups.append(group)
        if not self._is_placed(group, pool.num_ranks, kind, began_s + PLACEMENT_TIMEOUT_S):
            waited_s, what = time.monotonic() - began_s, "GPUs" if self.device == "GPU" else "CPU slots"
            raise InfeasibleError(
                f"pool {pool.name} found no {pool.num_ranks} free {what}{f' of kind {pool.kind}' if kind else ''} in "
                f"{waited_s:.0f} s; the cluster has {self.num_of(kind)}, others may hold some"
            )
        return group

    def _nodes_of(self, kind: str | None) -> list[Node]:
        """The nodes that are alive with their devices of a kind, of any where none is named, in order of address."""
        found = []
        for node in self._ray.nodes():
            has = node["Resources"]
            num = min(int(has.get(name, 0)) for name in ([self.device] if kind is None else [self.device, kind]))
            if node["Alive"] and num:
                found.append(Node(str(node["NodeID"]), str(node["NodeManagerAddress"]), num))
        return sorted(found, key=lambda node: [part.zfill(3) for part in node.address.split(".")])

    def num_of(self, kind: str | None) -> int:
        """Devices of a kind on the nodes that are alive now; of all of them where none is named."""
        return int(self._ray.cluster_resources().get(kind or self.device, 0))

    def _is_placed(self, group: Any, num_ranks: int, kind: str | None, deadline_s: float) -> bool:
        """Wait for a placement group; not for devices of a node that is gone."""
        while not group.wait(max(min(deadline_s - time.monotonic(), LOOK_S), 0.0)):
            if time.monotonic() > deadline_s or self.num_of(kind) < num_ranks:
                return False
        return True
