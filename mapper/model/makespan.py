"""The end of an iteration from its calls' durations, for many choices at once, and the least any pool must wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.problem import Group, Placement
    from profiles.records import Floats


def makespan(instance: Instance, partition: Placement, durations: dict[str, Floats]) -> Floats:
    """End of the iteration in ticks for arrays of durations: the longest path, with pools taking turns."""
    end: dict[str, Floats] = {}
    free: dict[int, Floats] = {}
    set_of = {role: i for i, group in enumerate(partition) for role in group.roles} | {CONTROLLER: -1}
    for call in instance.flow.calls:
        waits = [end[key] for key in call.inputs]
        if set_of[call.role] in free:
            waits.append(free[set_of[call.role]])
        start = np.maximum.reduce(np.broadcast_arrays(*waits)) if waits else np.zeros(())
        end[call.key] = free[set_of[call.role]] = start + durations[call.key]
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*end.values())))


def waiting_ticks(instance: Instance, group: Group) -> int:
    """Ticks that a pool must wait at least: for the advantages, and for a first generation if it is elsewhere.

    Where generation and training run at once neither is sure, so nothing is counted.
    """
    if _overlapped(instance):
        return 0
    wait = int(instance.ticks[CONTROLLER]["compute_advantage"][0])
    if any(instance.flow.generates(role) for role in group.roles):
        return wait
    owner = next(role for role in instance.tables if instance.flow.generates(role))
    first = [instance.ticks[owner][key] for key in ("transition", "generate_sequences")]
    return wait + int(np.sum(first, axis=0).min())


def _overlapped(instance: Instance) -> bool:
    """Whether nothing waits for this iteration's generation."""
    return not any("generate_sequences" in call.inputs for call in instance.flow.calls)
