"""The end of an iteration from its calls' durations, for many choices at once, and the least any pool must wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.instance import Instance
    from mapper.problem import Sets
    from profiles.records import Floats


def makespan(x: Instance, partition: Sets, durations: dict[str, Floats]) -> Floats:
    """End of the iteration in ticks for arrays of durations: the longest path, with pools taking turns."""
    end: dict[str, Floats] = {}
    free: dict[int, Floats] = {}
    set_of = {role: i for i, roles in enumerate(partition) for role in roles} | {CONTROLLER: -1}
    for call in x.flow.calls:
        waits = [end[key] for key in call.inputs]
        if set_of[call.role] in free:
            waits.append(free[set_of[call.role]])
        start = np.maximum.reduce(np.broadcast_arrays(*waits)) if waits else np.zeros(())
        end[call.key] = free[set_of[call.role]] = start + durations[call.key]
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*end.values())))


def waiting_ticks(x: Instance, roles: tuple[str, ...]) -> int:
    """Ticks that a pool must wait at least: for the advantages, and for a first generation if it is elsewhere."""
    wait = int(x.ticks[CONTROLLER]["compute_advantage"][0])
    if any(x.flow.generates(role) for role in roles):
        return wait
    first = [x.ticks[c.role][c.key] for c in x.flow.calls if c.key in ("transition", "generate_sequences")]
    return wait + int(np.sum(first, axis=0).min())
