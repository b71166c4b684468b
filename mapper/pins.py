"""Pins: degrees that the user fixes for a role; the search chooses the rest.

A pin narrows the enumeration before anything is priced, so a pinned search is the free search over fewer rows: same
prices, same proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from profiles.errors import InputError, UnknownNameError
from simulator.legality import budget_fault
from simulator.plan.layouts import Layouts
from simulator.plan.plan import RECOMPUTE_LEVELS, TokenBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mapper.problem import Sets
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.dataflow import Dataflow
    from simulator.plan.layouts import GenerationLayouts

Stage = Literal["training", "inference", "generation"]

_PARALLEL = ("dp", "tp", "pp", "cp", "ep", "zero_stage", "micro_batch", "recompute")

FIELDS: dict[Stage, tuple[str, ...]] = {
    "training": _PARALLEL,
    "inference": _PARALLEL,
    "generation": ("dp", "tp", "pp", "max_num_seqs", "ep", "attention_dp"),
}
"""What may be pinned in each stage: the columns of its layouts."""

One = int | str | TokenBudget
Value = One | tuple[One, ...]

_KIND = {"training": "train", "inference": "forward", "generation": "generate"}


@dataclass(frozen=True)
class Pin:
    """What is fixed about one role; everything that is not named stays free.

    Parameters
    ----------
    training, inference, generation
        Field of the stage's layout to its value (``recompute`` by name). A trained role scores in the spread that
        it trains in, so pinning the degrees of either stage pins both.
        A tuple of values allows any of them.
    num_gpus
        Size of the role's pool.
    device
        Kind of GPU of the role's pool.
    min_gpus_per_stage
        GPUs of a pipeline stage at least, where there are several stages (8 gives the bound ``p <= N_l / U`` of the
        paper's Algorithm 2).
    """

    role: str
    training: Mapping[str, Value] = field(default_factory=dict, hash=False)
    inference: Mapping[str, Value] = field(default_factory=dict, hash=False)
    generation: Mapping[str, Value] = field(default_factory=dict, hash=False)
    num_gpus: int | None = None
    min_gpus_per_stage: int = 1
    device: str | None = None

    def of(self, stage: Stage) -> Mapping[str, Value]:
        """The pinned fields of one stage."""
        stages: dict[Stage, Mapping[str, Value]] = {
            "training": self.training,
            "inference": self.inference,
            "generation": self.generation,
        }
        return stages[stage]

    def __str__(self) -> str:
        fixed = [f"{s} {k} {_shown(v)}" for s in FIELDS for k, v in self.of(s).items()]
        fixed += [f"{self.num_gpus} GPUs"] if self.num_gpus else []
        fixed += [f"device {self.device}"] if self.device else []
        fixed += [f"{self.min_gpus_per_stage} GPUs of a stage at least"] if self.min_gpus_per_stage > 1 else []
        return f"{self.role}: {', '.join(fixed)}"


def _shown(value: Value) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return " or ".join(f"{one.tokens:,} tokens" if isinstance(one, TokenBudget) else str(one) for one in values)


def pin_of(pins: tuple[AnyPin, ...], role: str) -> Pin:
    """The pin of a role; an empty one if it has none."""
    return next((pin for pin in pins if isinstance(pin, Pin) and pin.role == role), Pin(role))


def parts_of(pin: AnyPin) -> tuple[AnyPin, ...]:
    """A pin as pins that fix one thing each."""
    if not isinstance(pin, Pin):
        return (pin,)
    parts = [Pin(pin.role, training={k: v}) for k, v in pin.training.items()]
    parts += [Pin(pin.role, inference={k: v}) for k, v in pin.inference.items()]
    parts += [Pin(pin.role, generation={k: v}) for k, v in pin.generation.items()]
    if pin.num_gpus is not None:
        parts.append(Pin(pin.role, num_gpus=pin.num_gpus))
    if pin.device is not None:
        parts.append(Pin(pin.role, device=pin.device))
    if pin.min_gpus_per_stage > 1:
        parts.append(Pin(pin.role, min_gpus_per_stage=pin.min_gpus_per_stage))
    return tuple(parts)


def joined(parts: tuple[AnyPin, ...]) -> tuple[AnyPin, ...]:
    """Pins of several parts with those of one role made one again."""
    out: dict[object, AnyPin] = {}
    for i, part in enumerate(parts):
        before = out.get(part.role) if isinstance(part, Pin) else None
        if not isinstance(part, Pin) or not isinstance(before, Pin):
            out[part.role if isinstance(part, Pin) else i] = part
            continue
        out[part.role] = Pin(
            part.role,
            {**before.training, **part.training},
            {**before.inference, **part.inference},
            {**before.generation, **part.generation},
            before.num_gpus if part.num_gpus is None else part.num_gpus,
            max(before.min_gpus_per_stage, part.min_gpus_per_stage),
            part.device or before.device,
        )
    return tuple(out.values())


def pinned_budgets(pin: Pin, stage: Stage) -> tuple[int, ...]:
    """Budgets of tokens that a pin names for the micro-batches of a stage."""
    value = pin.of(stage).get("micro_batch", ())
    values = value if isinstance(value, tuple) else (value,)
    return tuple(one.tokens for one in values if isinstance(one, TokenBudget))


def matching(pin: Pin, stage: Stage, layouts: Layouts | GenerationLayouts) -> Ints:
    """Positions of the layouts of ``stage`` that agree with the pin, ascending."""
    keep = np.ones(len(layouts), dtype=np.bool_)
    for name, value in pin.of(stage).items():
        allowed = value if isinstance(value, tuple) else (value,)
        if name == "micro_batch" and isinstance(layouts, Layouts):
            budgets = [one.tokens for one in allowed if isinstance(one, TokenBudget)]
            counts = [one for one in allowed if isinstance(one, int)]
            counted = np.isin(layouts.micro_batch, counts) & (layouts.token_budget == 0)
            keep &= counted | np.isin(layouts.token_budget, budgets)
            continue
        levels = [RECOMPUTE_LEVELS.index(v) for v in allowed if v in RECOMPUTE_LEVELS]
        numbers = levels if name == "recompute" else [v for v in allowed if isinstance(v, int)]
        keep &= np.isin(getattr(layouts, name), numbers)
    if pin.num_gpus is not None:
        keep &= layouts.num_gpus <= pin.num_gpus
    if stage != "generation":
        keep &= (layouts.pp == 1) | (layouts.num_gpus // layouts.pp >= pin.min_gpus_per_stage)
    return np.flatnonzero(keep)


def check_pins(facts: Facts, flow: Dataflow, pins: tuple[AnyPin, ...]) -> None:
    """Raise ``InputError`` for a pin that names what the job does not have: role, stage, field, level or device.

    ``flow``: the calls as the search places them, whose roles may be pinned.
    """
    roles = flow.roles
    check_spare(facts, [pin for pin in pins if isinstance(pin, Spare)])
    of_roles = [pin for pin in pins if isinstance(pin, Pin)]
    for share in (pin for pin in pins if isinstance(pin, Share)):
        check_share(roles, share)
    for pin in of_roles:
        if pin.role not in roles:
            raise UnknownNameError("pinned role", pin.role, roles)
        if pin.device is not None and pin.device not in facts.device_types:
            raise UnknownNameError(f"device pinned for {pin.role}", pin.device, facts.device_types)
        kinds = {call.kind for call in flow.calls_of(pin.role)}
        for stage, known in FIELDS.items():
            for name, value in pin.of(stage).items():
                _check_field(facts, pin, stage, name, value, known, _KIND[stage] in kinds)
    named = [pin.role for pin in of_roles]
    if len(set(named)) != len(named):
        raise InputError(f"pin each role once, got {', '.join(named)}")


def _check_field(
    facts: Facts, pin: Pin, stage: Stage, name: str, value: Value, known: tuple[str, ...], runs: bool
) -> None:
    if not runs:
        raise InputError(f"pin of {pin.role}: it has no {stage} stage to pin")
    if name not in known:
        raise UnknownNameError(f"pinned {stage} field", name, known)
    for one in value if isinstance(value, tuple) else (value,):
        if name == "recompute":
            if one not in RECOMPUTE_LEVELS:
                raise UnknownNameError("recompute level", str(one), RECOMPUTE_LEVELS)
        elif name == "micro_batch" and isinstance(one, TokenBudget):
            if fault := budget_fault(1, facts.training, facts.implementation.packed_tokens):
                raise InputError(f"pin of {pin.role}: {stage} micro_batch: {fault}")
        elif not isinstance(one, int) or one < (0 if name == "zero_stage" else 1):
            raise InputError(f"pin of {pin.role}: {stage} {name} must be a whole number, got {one!r}")


@dataclass(frozen=True)
class Share:
    """All of ``roles`` share one pool (``wanted``), or no two of them do."""

    roles: tuple[str, ...]
    wanted: bool

    def allows(self, partition: Sets) -> bool:
        """Whether a placement agrees."""
        if self.wanted:
            return any(set(self.roles) <= set(group) for group in partition)
        return all(len(set(self.roles) & set(group)) < 2 for group in partition)

    def __str__(self) -> str:
        return f"share: {'require' if self.wanted else 'forbid'} {', '.join(self.roles)}"


@dataclass(frozen=True)
class Spare:
    """So many nodes stay free, of one kind of GPU where the cluster has several."""

    nodes: int
    device_type: str | None = None

    def __str__(self) -> str:
        return f"spare_nodes: {self.nodes}" + (f" of {self.device_type}" if self.device_type else "")


AnyPin = Pin | Share | Spare
"""One thing that is fixed: about a role, about who shares, about nodes that stay free."""


def check_share(roles: tuple[str, ...], share: Share) -> None:
    """Raise ``InputError`` for roles that are not among ``roles``, and for fewer than two."""
    for role in share.roles:
        if role not in roles:
            raise UnknownNameError("role to share", role, roles)
    if len(set(share.roles)) < 2:
        raise InputError(f"pin of {share}: name two roles or more")


def check_spare(facts: Facts, spares: list[Spare]) -> None:
    """Raise ``InputError`` if no node would be left, a kind is not there, or a number is given twice."""
    if len({spare.device_type for spare in spares}) < len(spares) or (
        len(spares) > 1 and None in {s.device_type for s in spares}
    ):
        raise InputError("pin spare_nodes once, or once for each kind of GPU")
    for spare in spares:
        if spare.device_type is None and len(facts.device_types) > 1:
            raise InputError(
                f"pin of spare_nodes: {spare.nodes} of which device? The cluster has {', '.join(facts.device_types)}; "
                f"write spare_nodes: {{{facts.device_types[0]}: {spare.nodes}}}"
            )
        device_type = spare.device_type or facts.device_types[0]
        if device_type not in facts.device_types:
            raise UnknownNameError("device of spare_nodes", device_type, facts.device_types)
        nodes = facts.on(device_type).group.nodes
        least = 0 if len(facts.device_types) == 1 else -1  # of several kinds one may stay free altogether
        if not 0 <= spare.nodes < nodes - least:
            raise InputError(f"pin of spare_nodes: {spare.nodes} of {nodes:,} nodes; at least one must be left to use")
