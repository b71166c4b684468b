"""Another plan for a run that has lost devices: the mapper's best on those that are left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hybridmap.console import warn
from profiles.errors import NotYetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.config import Job
    from simulator.facts import Facts
    from simulator.plan import Plan


def replanner(job: Job, plan: Plan, require_runnable: Callable[[Plan], None]) -> Callable[[int], Plan]:
    """What ``executor.run`` asks for a plan on at most so many devices.

    It answers with the best plan of the job on a cluster that has so many, or, where ``require_runnable`` refuses that
    one with ``NotYetError``, with ``plan`` scaled down. ``InfeasibleError`` where nothing fits.
    """
    facts = job.facts()
    if facts.others:
        raise NotYetError(
            f"run.on_failure: replan cannot tell yet which of {', '.join(facts.kinds)} are left; restart can run on "
            "clusters of several kinds"
        )

    def replan(num_devices: int) -> Plan:
        from executor.scale_down import scale_down
        from mapper.search import find_plan

        found = find_plan(
            on_fewer(facts, num_devices), runners_up=False, pins=job.pins(), objective=job.objective(),
            modes=job.modes(), space=job.space(),
        )  # fmt: skip
        try:
            require_runnable(found.plan)
        except NotYetError as error:
            warn(f"the best plan on {num_devices} devices cannot run ({error}); the old one is scaled down")
            return scale_down(plan, num_devices)
        return found.plan

    return replan


def on_fewer(facts: Facts, num_devices: int) -> Facts:
    """The same job on at most ``num_devices``: whole nodes of the cluster, or a part of one."""
    group = facts.group
    if num_devices >= group.num_gpus:
        return facts
    if num_devices >= group.gpus_per_node:
        return replace(facts, group=replace(group, nodes=num_devices // group.gpus_per_node))
    part = replace(group, nodes=1, gpus_per_node=num_devices, nvlink_domain_gpus=num_devices, nodes_per_pod=0)
    return replace(facts, group=part)
