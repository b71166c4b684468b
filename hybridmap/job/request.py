"""The parts of a job that say what plan is wanted: objective, schedule and pins, as documents and as the mapper's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mapper.execution_mode import ROLLOUT, SYNC, ExecutionMode, search_flow
from mapper.objective import Objective
from mapper.pins import Pin, check_pins
from mapper.sharing import Share, Spare
from profiles.errors import InputError, UnknownNameError
from profiles.store import device_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.job.choices import ObjectiveSection, PinSection, ScheduleSection
    from mapper.objective import Goal
    from mapper.pins import AnyPin
    from simulator.facts import Facts

STAGES = ("training", "inference", "generation")


def objective_document(objective: ObjectiveSection) -> dict[str, Any]:
    """What was given, less what was not."""
    return {key: value for key, value in objective.model_dump().items() if value is not None and value != {}}


def objective_of(document: Mapping[str, Any], devices: tuple[str, ...]) -> Objective:
    """The mapper's objective.

    Raises ``InputError`` if a price or a target is missing, or one is given that this objective has no use for.
    """
    named = [document[key] for key in ("minimise", "maximise") if key in document]
    if len(named) != 1:
        raise InputError("say either minimise (time, cost, gpus) or maximise (throughput_per_gpu)")
    goal: Goal = named[0]
    prices: Mapping[str, float] = document.get("price_per_gpu_hour", {})
    target = document.get("target_iteration_s")
    for name in prices:
        if name not in devices:
            raise _other_device("price_per_gpu_hour", name, devices)
    unpriced = [device for device in devices if device not in prices]
    if unpriced and (goal == "cost" or prices):
        raise InputError(
            f"{'cost needs a price' if goal == 'cost' else 'a price is missing'}, such as "
            f"price_per_gpu_hour: {{{', '.join(f'{device}: 2.5' for device in unpriced)}}}"
        )
    if (goal == "gpus") is (target is None):
        wants = "gpus needs target_iteration_s, the longest iteration that will do"
        raise InputError(wants if goal == "gpus" else f"{goal} has no use for target_iteration_s; that goes with gpus")
    return Objective(goal, tuple(prices.items()), None if target is None else float(target))


def pin_document(pins: PinSection, roles: tuple[str, ...]) -> dict[str, Any]:
    """What was pinned, roles in dataflow order (unknown ones after them)."""
    document: dict[str, Any] = {}
    share = {key: groups for key, groups in pins.share.model_dump().items() if groups}
    if share:
        document["share"] = share
    if pins.spare_nodes:
        document["spare_nodes"] = pins.spare_nodes
    ordered = [role for role in roles if role in pins.roles] + [role for role in pins.roles if role not in roles]
    for role in ordered:
        given = pins.roles[role].model_dump(exclude_none=True)
        if kept := {key: value for key, value in given.items() if value != {}}:
            document[role] = kept
    return document


def pins_of(document: Mapping[str, Any]) -> tuple[AnyPin, ...]:
    """The mapper's pins."""
    share = document.get("share", {})
    pins: list[AnyPin] = [Share(tuple(group), True) for group in share.get("require", ())]
    pins += [Share(tuple(group), False) for group in share.get("forbid", ())]
    spare = document.get("spare_nodes", 0)
    if isinstance(spare, dict):
        pins += [Spare(nodes, kind) for kind, nodes in spare.items() if nodes]
    elif spare:
        pins.append(Spare(spare))
    for role in _pinned_roles(document):
        fixed = document[role]
        train, score, generate = ({k: _value(v) for k, v in fixed.get(s, {}).items()} for s in STAGES)
        pins.append(Pin(role, train, score, generate, fixed.get("gpus"), device=fixed.get("device")))
    return tuple(pins)


def check_pin_document(document: Mapping[str, Any], facts: Facts, modes: tuple[ExecutionMode, ...]) -> None:
    """Raise ``InputError`` for pins of what the job does not have."""
    for mode in modes:
        flow = search_flow(facts.dataflow, mode)
        for role in _pinned_roles(document):
            if role == ROLLOUT and role not in flow.roles:
                raise InputError(
                    "rollout: the actor generates on the GPUs that it trains on; with schedule: {generation_pool: own} "
                    "it has a pool to pin"
                )
            if role not in flow.roles:
                raise UnknownNameError("role or key", role, (*flow.roles, "share", "spare_nodes"))
            device = document[role].get("device", facts.device_types[0])
            if device not in facts.device_types:
                raise _other_device(f"{role}.device", device, facts.device_types)
            if mode.dedicated_rollout and "generation" in document[role] and role != ROLLOUT:
                raise InputError(
                    f"{role}.generation: on a pool of its own the actor generates as rollout; pin rollout.generation"
                )
        check_pins(facts, flow, pins_of(document))


def schedule_document(schedule: ScheduleSection) -> dict[str, Any]:
    """What was given, less what was not."""
    given = schedule.model_dump(exclude_none=True)
    return {key: value for key, value in given.items() if key == "kind" or value is not False}


def modes_of(document: Mapping[str, Any]) -> tuple[ExecutionMode, ...]:
    """The mapper's modes, in the order in which they are searched.

    ``any`` is every schedule that trains on samples at most one step old. Raises ``InputError`` for a combination that
    makes no sense.
    """
    kind, updates = document["kind"], document.get("in_flight_updates", False)
    steps = document.get("steps_in_flight", 1)
    where = document.get("generation_pool", {"sync": "shared", "any": "any"}.get(kind, "own"))
    if kind == "any":
        if steps != 1 or updates or where != "any":
            raise InputError(
                "any takes the best of sync and one-step-off on shared and own pools; name one to say more"
            )
        return (SYNC, ExecutionMode(dedicated_rollout=True), ExecutionMode("one-step-off", dedicated_rollout=True))
    if kind != "sync" and where == "any":
        where = "own"  # it needs one
    pools = {"shared": (False,), "own": (True,), "any": (False, True)}[where]
    return tuple(ExecutionMode(kind, own, steps, updates) for own in pools)


def schedule_of(mode: ExecutionMode) -> dict[str, Any]:
    """The schedule, in normal form, that ``modes_of`` reads as ``mode``."""
    document: dict[str, Any] = {"kind": mode.schedule, "generation_pool": "own" if mode.dedicated_rollout else "shared"}
    if mode.steps_in_flight > 1:
        document["steps_in_flight"] = mode.steps_in_flight
    return document | ({"in_flight_updates": True} if mode.in_flight_updates else {})


def _pinned_roles(document: Mapping[str, Any]) -> list[str]:
    return [key for key in document if key not in ("share", "spare_nodes")]


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _other_device(place: str, name: str, devices: tuple[str, ...]) -> InputError:
    """``name`` is no device of the cluster's: one that there is, or a misspelt one."""
    if name in device_names():
        return InputError(f"{place}: the cluster has {' and '.join(devices)} alone, not {name}")
    unknown = UnknownNameError("device", name, devices)
    unknown.args = (f"{place}: {unknown}",)
    return unknown
