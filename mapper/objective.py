"""The objective: the end of the iteration as the event queue plays it, in ticks.

A call starts when its inputs have ended and its pool has finished the calls before it in call order, so its end is
a longest path; minimising makes the inequalities tight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.dataflow import CONTROLLER

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from mapper.instance import Instance
    from mapper.variables import Variables


def build_iteration_time(model: cp_model.CpModel, x: Instance, v: Variables) -> None:
    """Tie ``end`` and ``makespan`` to the choices, and minimise the makespan."""
    duration = {call.key: _duration(x, v, call.role, call.key) for call in x.flow.calls}
    for call in x.flow.calls:
        model.add(v.end[call.key] >= duration[call.key])
        model.add(v.makespan >= v.end[call.key])
        for key in call.inputs:
            model.add(v.end[call.key] >= v.end[key] + duration[call.key])
    _take_turns(model, x, v, duration)
    model.minimize(v.makespan)


def _duration(x: Instance, v: Variables, role: str, key: str) -> cp_model.LinearExprT:
    ticks = x.ticks[role][key]
    if role == CONTROLLER:
        return int(ticks[0])
    return sum(int(t) * pick for t, pick in zip(ticks.tolist(), v.pick[role], strict=True))


def _take_turns(
    model: cp_model.CpModel, x: Instance, v: Variables, duration: dict[str, cp_model.LinearExprT]
) -> None:
    """Calls of roles that share a pool follow each other in call order.

    Beside the pairwise rule, the whole load of a set between two joints of the dataflow is bounded from below
    (redundant, but it is what makes the linear relaxation tight).
    """
    for roles, sizes in x.sizes.items():
        shared = sum(v.pool[roles, n] for n in sizes)
        chosen = model.new_bool_var(f"set {roles}")
        model.add(shared == chosen)
        calls = [call.key for call in x.flow.calls if call.role in roles]
        for before, after in zip(calls, calls[1:], strict=False):
            model.add(v.end[after] >= v.end[before] + duration[after]).only_enforce_if(chosen)
        model.add(v.makespan >= sum(duration[key] for key in calls)).only_enforce_if(chosen)
    in_order = [call.key for call in x.flow.calls if call.role == CONTROLLER]
    for before, after in zip(in_order, in_order[1:], strict=False):
        model.add(v.end[after] >= v.end[before] + duration[after])
