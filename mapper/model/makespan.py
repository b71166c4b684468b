"""The end of an iteration from its calls' durations, for many choices at once."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.problem import Placement
    from profiles.records import Floats


def waits_for(instance: Instance, partition: Placement) -> dict[str, list[str]]:
    """Calls that each call waits for, by key: its inputs, and the one before it on its pool. Calls come in turn."""
    set_of = {role: i for i, group in enumerate(partition) for role in group.roles} | {CONTROLLER: -1}
    out: dict[str, list[str]] = {}
    last: dict[int, str] = {}
    for call in instance.flow.calls:
        pool = set_of[call.role]
        out[call.key] = [*call.inputs, *([last[pool]] if pool in last else [])]
        last[pool] = call.key
    return out


def makespan(instance: Instance, partition: Placement, durations: dict[str, Floats]) -> Floats:
    """End of the iteration in ticks for arrays of durations: the longest path, with pools taking turns."""
    end: dict[str, Floats] = {}
    free: dict[int, Floats] = {}
    set_of = {role: i for i, group in enumerate(partition) for role in group.roles} | {CONTROLLER: -1}
    for call in instance.flow.calls:
        waits = [end[key] for key in call.inputs]
        if set_of[call.role] in free:
            waits.append(free[set_of[call.role]])
        start = reduce(np.maximum, waits) if waits else np.zeros(())
        end[call.key] = free[set_of[call.role]] = start + durations[call.key]
    return np.asarray(reduce(np.maximum, end.values()))
