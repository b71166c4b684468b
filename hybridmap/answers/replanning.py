"""Another plan for a run that has lost devices: the mapper's best on those that are left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hybridmap.console import warn
from profiles.errors import InfeasibleError, NotYetError
from simulator.facts import DeviceGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.controller.pools import Devices
    from hybridmap.job.job import Job
    from profiles.hardware import ClusterGroup
    from simulator.facts import Facts
    from simulator.plan.plan import Plan


def replanner(job: Job, plan: Plan, require_runnable: Callable[[Plan], None]) -> Callable[[Devices], Plan]:
    """What ``executor.run`` asks for a plan on the devices that are left.

    It answers with the best plan of the job on a cluster that has those, or, where ``require_runnable`` refuses that
    one with ``NotYetError``, with ``plan`` scaled down. ``InfeasibleError`` where nothing fits.
    """

    def replan(left: Devices) -> Plan:
        from executor.recovery.scale_down import scale_down
        from mapper.search.find_plan import find_plan

        found = find_plan(replace(job.request(), facts=on_fewer(job.facts(), left), runners_up=False))
        try:
            require_runnable(found.plan)
        except NotYetError as error:
            warn(f"the best plan on {left} cannot run ({error}); the old one is scaled down")
            return scale_down(plan, left)
        return found.plan

    return replan


def on_fewer(facts: Facts, left: Devices) -> Facts:
    """The same job on at most the devices ``left``: of each kind whole nodes of the cluster, or a part of one.

    Kinds of which none is left are left out. ``InfeasibleError`` where nothing is, or where the cluster has several
    kinds and its nodes do not say which.
    """
    kinds = (DeviceGroup(facts.group, facts.device), *facts.others)
    if left.kinds or not facts.others:
        sizes = [left.kinds.get(kind.group.device, 0) if left.kinds else left.num for kind in kinds]
    elif left.num >= facts.num_gpus:
        return facts
    else:
        from executor.controller.pools import ray_start

        raise InfeasibleError(
            f"the nodes do not say which of {', '.join(facts.device_types)} they have; start each with its kind: "
            f"{ray_start(facts.device_types[0])}"
        )
    kept = [replace(kind, group=_fewer(kind.group, n)) for kind, n in zip(kinds, sizes, strict=True) if n]
    if not kept:
        raise InfeasibleError(f"{left} are left, none of the job's {', '.join(facts.device_types)}")
    return replace(facts, group=kept[0].group, device=kept[0].device, others=tuple(kept[1:]))


def _fewer(group: ClusterGroup, num_devices: int) -> ClusterGroup:
    if num_devices >= group.num_gpus:
        return group
    if num_devices >= group.gpus_per_node:
        return replace(group, nodes=num_devices // group.gpus_per_node)
    return replace(group, nodes=1, gpus_per_node=num_devices, nvlink_domain_gpus=num_devices, nodes_per_pod=0)
