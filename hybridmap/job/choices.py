"""The schema of what a job asks of the search: its objective, and what it pins."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hybridmap.job.leaves import MOST_NODES, Name, Positive, Section, is_name, leaf, number, one_of, refusal, whole
from simulator.plan.plan import RECOMPUTE_LEVELS

MINIMISE = ("time", "cost", "gpus")
MAXIMISE = ("throughput_per_gpu",)
MOST_GPUS = MOST_NODES * 1024
MOST_STEPS = 64
SCHEDULES = ("sync", "one-step-off", "async", "any")
GENERATION_POOLS = ("shared", "own", "any")


class ObjectiveSection(Section):
    """What is minimised, or maximised; exactly one of the two."""

    minimise: Annotated[Any, one_of(MINIMISE)] | None = None
    maximise: Annotated[Any, one_of(MAXIMISE)] | None = None
    price_per_gpu_hour: dict[Name, Annotated[Any, number("a positive price", lambda v: v > 0)]] = Field(
        default_factory=dict
    )
    target_iteration_s: Positive | None = None


def as_objective(value: Any) -> Any:
    """``cost`` alone stands for ``{minimise: cost}``."""
    if isinstance(value, str) and value in MINIMISE:
        return {"minimise": value}
    if isinstance(value, str) and value in MAXIMISE:
        return {"maximise": value}
    if not isinstance(value, dict):
        names = ", ".join((*MINIMISE, *MAXIMISE))
        raise refusal(f"one of {names}, or a mapping such as {{minimise: gpus, target_iteration_s: ..}}")
    return value


def _degree(least: int, most: int) -> BeforeValidator:
    """A whole number, or a list of those that are allowed."""

    def is_right(value: Any) -> bool:
        values = value if isinstance(value, list) and value else [value]
        return all(type(v) is int and least <= v <= most for v in values)

    return leaf(f"a whole number from {least} to {most:,}, or a list of them", is_right)


def _is_recompute(value: Any) -> bool:
    values = value if isinstance(value, list) and value else [value]
    return all(isinstance(v, str) and v in RECOMPUTE_LEVELS for v in values)


Recompute = Annotated[Any, leaf(f"one of {', '.join(RECOMPUTE_LEVELS)}, or a list of them", _is_recompute)]
Degree = Annotated[Any, _degree(1, MOST_GPUS)]
ZeroStage = Annotated[Any, _degree(0, 3)]


class LayoutPin(Section):
    """Degrees of training or of forward passes."""

    dp: Degree | None = None
    tp: Degree | None = None
    pp: Degree | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    zero_stage: ZeroStage | None = None
    micro_batch: Degree | None = None
    recompute: Recompute | None = None


class GenerationPin(Section):
    """Degrees of the engine's replicas."""

    dp: Degree | None = None
    tp: Degree | None = None
    pp: Degree | None = None
    max_num_seqs: Degree | None = None


class RolePin(Section):
    """What is fixed about one role."""

    gpus: Annotated[Any, whole(MOST_GPUS)] | None = None
    device: Name | None = None
    training: LayoutPin | None = None
    inference: LayoutPin | None = None
    generation: GenerationPin | None = None


def _is_group(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= 2 and all(is_name(v) for v in value)


Group = Annotated[Any, leaf("a list of two roles or more", _is_group)]


class ShareSection(Section):
    """Roles that share their GPUs, and roles that do not; any others may."""

    require: list[Group] = Field(default_factory=list)
    forbid: list[Group] = Field(default_factory=list)


def _is_spare(value: Any) -> bool:
    counts = value.values() if isinstance(value, dict) else [value]
    named = not isinstance(value, dict) or (value and all(is_name(key) for key in value))
    return bool(named) and all(type(n) is int and 0 <= n <= MOST_NODES for n in counts)


SpareNodes = Annotated[Any, leaf("a whole number of nodes, or {device: nodes} where there are several", _is_spare)]


Flag = Annotated[Any, leaf("true or false", lambda v: type(v) is bool)]


class ScheduleSection(Section):
    """How iterations follow each other, and where the actor generates."""

    kind: Annotated[Any, one_of(SCHEDULES)] = "sync"
    generation_pool: Annotated[Any, one_of(GENERATION_POOLS)] | None = None
    steps_in_flight: Annotated[Any, whole(MOST_STEPS)] | None = None
    in_flight_updates: Flag = False


def as_schedule(value: Any) -> Any:
    """``one-step-off`` alone stands for ``{kind: one-step-off}``."""
    if isinstance(value, str) and value in SCHEDULES:
        return {"kind": value}
    if not isinstance(value, dict):
        raise refusal(f"one of {', '.join(SCHEDULES)}, or a mapping such as {{kind: async, steps_in_flight: 2}}")
    return value


class SearchSection(Section):
    """What the search may use beyond what every trainer has; ``mapper.search_options`` says what each means."""

    interleaving: Flag = False
    offload: Flag = False
    tensor_parallel_across_nodes: Flag = False
    scoring_layouts: Flag = False


class PinSection(Section):
    """All pins; in the file the roles stand beside ``share`` and ``spare_nodes``."""

    share: ShareSection = ShareSection()
    spare_nodes: SpareNodes = 0
    roles: dict[Name, RolePin] = Field(default_factory=dict)


def as_pins(value: Any) -> Any:
    """Gather the roles of the file under ``roles``."""
    if not isinstance(value, dict):
        raise refusal("a mapping of roles, share and spare_nodes")
    apart = {key: value[key] for key in ("share", "spare_nodes") if key in value}
    return {**apart, "roles": {key: each for key, each in value.items() if key not in apart}}


Objective = Annotated[ObjectiveSection, BeforeValidator(as_objective)]
Schedule = Annotated[ScheduleSection, BeforeValidator(as_schedule)]
Pins = Annotated[PinSection, BeforeValidator(as_pins)]

SECTIONS: dict[tuple[str, ...], type[Section]] = {
    ("objective",): ObjectiveSection,
    ("schedule",): ScheduleSection,
    ("search",): SearchSection,
    ("pin", "share"): ShareSection,
    ("pin", "roles"): RolePin,
    ("pin", "roles", "training"): LayoutPin,
    ("pin", "roles", "inference"): LayoutPin,
    ("pin", "roles", "generation"): GenerationPin,
}
"""Sections by place, without the names of roles."""
