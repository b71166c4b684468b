"""What a job asks of the search: objective, schedule, opt-in layouts and pins, as the mapper's records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.job.choices import ScheduleSection
from hybridmap.job.places import at
from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode, search_flow
from mapper.objective import Objective
from mapper.pins import Pin, Share, Spare, check_pins
from mapper.request import SearchRequest
from mapper.search_options import SearchOptions, check_options
from profiles.errors import InputError, UnknownNameError
from profiles.store import device_names
from simulator.plan.plan import TokenBudget

if TYPE_CHECKING:
    from hybridmap.job.choices import GenerationPin, LayoutPin, ObjectiveSection, PinSection
    from hybridmap.job.job import Job
    from mapper.objective import Goal
    from mapper.pins import AnyPin, Value
    from simulator.facts import Facts


def request_of(job: Job, facts: Facts) -> SearchRequest:
    """The search that a job asks for; ``InputError``, with the section in front, for what it cannot have."""
    with at("objective"):
        objective = objective_of(job.objective, facts.device_types)
    with at("search"):
        options = SearchOptions(**dict(job.search))
        check_options(facts, options)
    with at("schedule"):
        modes = modes_of(job.schedule)
    with at("pin"):
        pins = _checked_pins(job.pin, facts, modes)
    return SearchRequest(facts, pins=pins, modes=modes, options=options, objective=objective)


def objective_of(section: ObjectiveSection, devices: tuple[str, ...]) -> Objective:
    """The mapper's objective.

    Raises ``InputError`` if a price or a target is missing, or one is given that this objective has no use for.
    """
    named: list[Goal] = [goal for goal in (section.minimise, section.maximise) if goal is not None]
    if len(named) != 1:
        raise InputError("say either minimise (time, cost, gpus) or maximise (throughput_per_gpu)")
    goal, prices, target = named[0], section.price_per_gpu_hour, section.target_iteration_s
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


def modes_of(section: ScheduleSection) -> tuple[ExecutionMode, ...]:
    """The mapper's modes, in the order in which they are searched.

    ``any`` is every schedule that trains on samples at most one step old. Raises ``InputError`` for a combination that
    makes no sense.
    """
    kind, updates, steps = section.kind, section.in_flight_updates, section.steps_in_flight or 1
    where = section.generation_pool or {"sync": "shared", "any": "any"}.get(kind, "own")
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


def schedule_of(mode: ExecutionMode) -> ScheduleSection:
    """The section that ``modes_of`` reads as ``mode``."""
    return ScheduleSection(
        kind=mode.schedule,
        generation_pool="own" if mode.dedicated_rollout else "shared",
        steps_in_flight=mode.steps_in_flight if mode.steps_in_flight > 1 else None,
        in_flight_updates=mode.in_flight_updates,
    )


def _checked_pins(section: PinSection, facts: Facts, modes: tuple[ExecutionMode, ...]) -> tuple[AnyPin, ...]:
    """The mapper's pins; ``InputError`` for pins of what the job does not have."""
    pins = _pins_of(section)
    for mode in modes:
        flow = search_flow(facts.dataflow, mode)
        for role, fixed in section.roles.items():
            if role == GENERATOR and role not in flow.roles:
                raise InputError(
                    "generator: the actor generates on the GPUs that it trains on; with schedule: "
                    "{generation_pool: own} it has a pool to pin"
                )
            if role not in flow.roles:
                raise UnknownNameError("role or key", role, (*flow.roles, "share", "spare_nodes"))
            if fixed.device is not None and fixed.device not in facts.device_types:
                raise _other_device(f"{role}.device", fixed.device, facts.device_types)
            if mode.dedicated_rollout and fixed.generation is not None and role != GENERATOR:
                raise InputError(
                    f"{role}.generation: on a dedicated rollout pool the actor generates as generator; pin "
                    "generator.generation"
                )
        check_pins(facts, flow, pins)
    return pins


def _pins_of(section: PinSection) -> tuple[AnyPin, ...]:
    pins: list[AnyPin] = [Share(tuple(group), True) for group in section.share.require]
    pins += [Share(tuple(group), False) for group in section.share.forbid]
    spare = section.spare_nodes
    if isinstance(spare, dict):
        pins += [Spare(nodes, device) for device, nodes in spare.items() if nodes]
    elif spare:
        pins.append(Spare(spare))
    for role, fixed in section.roles.items():
        train, score, generate = map(_values, (fixed.training, fixed.inference, fixed.generation))
        pins.append(Pin(role, train, score, generate, fixed.gpus, device=fixed.device))
    return tuple(pins)


def _values(layout: LayoutPin | GenerationPin | None) -> dict[str, Value]:
    given = {} if layout is None else layout.model_dump()
    return {
        field: tuple(map(_value, value)) if isinstance(value, list) else _value(value) for field, value in given.items()
    }


def _value(one: int | str | dict[str, int]) -> int | str | TokenBudget:
    """A budget of tokens as plans have it; anything else as it is."""
    return TokenBudget(tokens=one["tokens"]) if isinstance(one, dict) else one


def _other_device(place: str, name: str, devices: tuple[str, ...]) -> InputError:
    """``name`` is no device of the cluster's: one that there is, or a misspelt one."""
    if name in device_names():
        return InputError(f"{place}: the cluster has {' and '.join(devices)} alone, not {name}")
    unknown = UnknownNameError("device", name, devices)
    unknown.args = (f"{place}: {unknown}",)
    return unknown
