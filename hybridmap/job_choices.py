"""The schema of what a job asks of the search: its objective, and what it pins."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hybridmap.job_leaves import MOST_NODES, Name, Positive, Section, is_name, leaf, number, one_of, refusal, whole
from simulator.plan import RECOMPUTE_LEVELS

MINIMISE = ("time", "cost", "gpus")
MAXIMISE = ("throughput_per_gpu",)
MOST_GPUS = MOST_NODES * 1024


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


class PinSection(Section):
    """All pins; in the file the roles stand beside ``share`` and ``spare_nodes``."""

    share: ShareSection = ShareSection()
    spare_nodes: Annotated[Any, whole(MOST_NODES, 0)] = 0
    roles: dict[Name, RolePin] = Field(default_factory=dict)


def as_pins(value: Any) -> Any:
    """Gather the roles of the file under ``roles``."""
    if not isinstance(value, dict):
        raise refusal("a mapping of roles, share and spare_nodes")
    apart = {key: value[key] for key in ("share", "spare_nodes") if key in value}
    return {**apart, "roles": {key: each for key, each in value.items() if key not in apart}}


Objective = Annotated[ObjectiveSection, BeforeValidator(as_objective)]
Pins = Annotated[PinSection, BeforeValidator(as_pins)]

SECTIONS: dict[tuple[str, ...], type[Section]] = {
    ("objective",): ObjectiveSection,
    ("pin", "share"): ShareSection,
    ("pin", "roles"): RolePin,
    ("pin", "roles", "training"): LayoutPin,
    ("pin", "roles", "inference"): LayoutPin,
    ("pin", "roles", "generation"): GenerationPin,
}
"""Sections by place, without the names of roles."""
