"""The objective: the end of the iteration as the event queue plays it, in ticks.

A call starts when its inputs have ended and its pool has finished the calls before it in call order, so its end is
a longest path; minimising makes the inequalities tight.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.model.cp_sat import cp_model
    from mapper.model.instance import Instance
    from mapper.model.variables import Variables


def build_iteration_time(model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
    """Tie ``end`` and ``makespan`` to the choices, and minimise the makespan."""
    for call in instance.flow.calls:
        model.add(v.end[call.key] >= v.duration[call.key])
        model.add(v.makespan >= v.end[call.key])
        for key in call.inputs:
            model.add(v.end[call.key] >= v.end[key] + v.duration[call.key])
    for group, chosen in v.shared.items():
        _take_turns(model, v, [call.key for call in instance.flow.calls if call.role in group.roles], chosen)
    _take_turns(model, v, [call.key for call in instance.flow.calls if call.role == CONTROLLER], None)
    model.minimize(v.makespan)


def _take_turns(model: cp_model.CpModel, v: Variables, calls: list[str], chosen: cp_model.IntVar | None) -> None:
    """Calls of roles that share a pool follow each other in call order.

    The whole load of the pool bounds the makespan too: implied, but it tightens the linear relaxation.
    """
    rules = [model.add(v.end[b] >= v.end[a] + v.duration[b]) for a, b in itertools.pairwise(calls)]
    rules.append(model.add(v.makespan >= sum(v.duration[key] for key in calls)))
    if chosen is not None:
        for rule in rules:
            rule.only_enforce_if(chosen)
