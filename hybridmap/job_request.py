"""The parts of a job that say what plan is wanted: its objective and its pins, as documents and as the mapper's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mapper.goal import Objective
from mapper.pins import Pin, check_pins
from mapper.sharing import Share, Spare
from profiles.errors import InputError, UnknownNameError
from profiles.store import device_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.job_choices import ObjectiveSection, PinSection
    from mapper.goal import Goal
    from mapper.pins import AnyPin
    from simulator.facts import Facts

STAGES = ("training", "inference", "generation")


def objective_document(objective: ObjectiveSection) -> dict[str, Any]:
    """What was given, less what was not."""
    return {key: value for key, value in objective.model_dump().items() if value is not None and value != {}}


def objective_of(document: Mapping[str, Any], device: str) -> Objective:
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
        if name != device:
            raise _other_device("price_per_gpu_hour", name, device)
    if goal == "cost" and not prices:
        raise InputError(f"cost needs a price, such as price_per_gpu_hour: {{{device}: 2.5}}")
    if (goal == "gpus") is (target is None):
        wants = "gpus needs target_iteration_s, the longest iteration that will do"
        raise InputError(wants if goal == "gpus" else f"{goal} has no use for target_iteration_s; that goes with gpus")
    return Objective(goal, float(prices.get(device, 0.0)), None if target is None else float(target))


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
    if document.get("spare_nodes"):
        pins.append(Spare(document["spare_nodes"]))
    for role in _pinned_roles(document):
        fixed = document[role]
        train, score, generate = ({k: _value(v) for k, v in fixed.get(s, {}).items()} for s in STAGES)
        if set(fixed) - {"device"}:
            pins.append(Pin(role, train, score, generate, fixed.get("gpus")))
    return tuple(pins)


def check_pin_document(document: Mapping[str, Any], facts: Facts) -> None:
    """Raise ``InputError`` for pins of what the job does not have."""
    for role in _pinned_roles(document):
        if role not in facts.dataflow.roles:
            raise UnknownNameError("role or key", role, (*facts.dataflow.roles, "share", "spare_nodes"))
        device = document[role].get("device", facts.group.device)
        if device != facts.group.device:
            raise _other_device(f"{role}.device", device, facts.group.device)
    check_pins(facts, pins_of(document))


def _pinned_roles(document: Mapping[str, Any]) -> list[str]:
    return [key for key in document if key not in ("share", "spare_nodes")]


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _other_device(place: str, name: str, device: str) -> InputError:
    """``name`` is another device than the cluster's: one that there is, or a misspelt one."""
    if name in device_names():
        return InputError(f"{place}: the cluster has {device} alone, not {name}")
    unknown = UnknownNameError("device", name, (device,))
    unknown.args = (f"{place}: {unknown}",)
    return unknown
