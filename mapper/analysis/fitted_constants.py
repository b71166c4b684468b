"""Fitted constants that carry much of an iteration: if one of them is off, so is the plan's time.

A constant's share is the slope of the iteration's time over the constant's own, both in logarithms: the plan is
priced again with the constant a little larger, by the functions that priced it first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiles.records import Basis
from simulator.play.simulate import build_timeline, price_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from profiles.engine_facts import GenerationEngine, TrainingEngine
    from profiles.hardware import DeviceSpec
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

LARGE = 0.15
"""Share of an iteration from which a single fitted constant is named."""
STEP = 1.05
"""Factor on a constant whose effect is taken as the slope."""


@dataclass(frozen=True)
class CarryingConstant:
    """A constant that was fitted on runs of others, where it stands, and the share of the iteration that it carries."""

    name: str
    owner: str
    share: float


def carrying_constants(facts: Facts, plan: Plan) -> list[CarryingConstant]:
    """Fitted constants that carry at least ``LARGE`` of an iteration each.

    Parameters
    ----------
    facts, plan
        The job's facts and a plan that they price.

    Returns
    -------
    list[CarryingConstant]
        The largest share first; constants of engines, and sustained rates of the first device type.
    """

    def seconds(known: Facts) -> float:
        return build_timeline(plan, known, price_calls(plan, known)).iteration_s

    def share(known: Facts) -> float:
        return abs(seconds(known) / before - 1.0) / (STEP - 1.0)

    before = seconds(facts)
    if share(_all_raised(facts)) < LARGE:  # one alone costs no more than all together, and plans are many
        return []
    found = [CarryingConstant(name, owner, share(known)) for name, owner, known in _raised(facts)]
    return sorted((c for c in found if c.share >= LARGE), key=lambda c: -c.share)


def _all_raised(facts: Facts) -> Facts:
    """The facts in which every fitted constant costs ``STEP`` times as much."""
    for kind in ("training", "generation"):
        engine = getattr(facts, kind)
        facts = replace(facts, **{kind: replace(engine, **{n: getattr(engine, n) * STEP for n in _fitted(engine)})})
    spec = facts.device.spec
    slower = {dtype: spec.sustained_flop_per_s[dtype] / STEP for dtype in _fitted_rates(spec)}
    return replace(facts, device=facts.device.with_spec(_with_rates(spec, slower)))


def _raised(facts: Facts) -> Iterator[tuple[str, str, Facts]]:
    """Name, owner, and the facts in which that fitted constant costs ``STEP`` times as much."""
    for kind in ("training", "generation"):
        engine = getattr(facts, kind)
        for name in _fitted(engine):
            changed = replace(engine, **{name: getattr(engine, name) * STEP})
            yield name, engine.name, replace(facts, **{kind: changed})
    spec = facts.device.spec
    for dtype in _fitted_rates(spec):
        slower = _with_rates(spec, {dtype: spec.sustained_flop_per_s[dtype] / STEP})
        yield f"sustained_flop_per_s.{dtype}", spec.name, replace(facts, device=facts.device.with_spec(slower))


def _fitted(engine: GenerationEngine | TrainingEngine) -> list[str]:
    return [name for name, basis in engine.bases.items() if basis is Basis.FITTED and getattr(engine, name)]


def _fitted_rates(spec: DeviceSpec) -> list[str]:
    return [d for d in spec.sustained_flop_per_s if spec.bases.get(f"sustained_flop_per_s.{d}") is Basis.FITTED]


def _with_rates(spec: DeviceSpec, rates: dict[str, float]) -> DeviceSpec:
    return replace(spec, sustained_flop_per_s={**spec.sustained_flop_per_s, **rates})
