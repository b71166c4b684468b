"""What each price of an iteration rests on: tables, rules, and what a calibration made of these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridmap.text.notation import percent
from profiles.calibration import CALLS, FACTORS
from profiles.device_file import MEASURED_HERE
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.facts import Facts
    from simulator.plan.timeline import Span, Timeline

MOVES = CALLS | {"generation_host": CALLS["generation"], "training_host": (*CALLS["training"], *CALLS["scoring"])}
FACTORS_OF = {
    call: tuple(name for name in FACTORS if call in MOVES[name])
    for call in dict.fromkeys(call for calls in MOVES.values() for call in calls)
}
"""Which factors of a calibration a call's price has, those of host times in its passes included."""

LEAST_SHARE = 0.005
MOVED = 0.005
"""A factor nearer to 1 than that is printed as none."""


@dataclass(frozen=True)
class Evidence:
    """What one call's seconds rest on.

    Parameters
    ----------
    call, seconds
        Key of the call, and its price.
    basis
        Share of the price by kind of evidence, the calibration's own seconds as measured ones.
    factor, host_factor
        What the calibration multiplies the whole call by, and the host times in its passes.
    beside_s
        Of ``seconds``, those that the calibration alone says.
    learned
        Factors of this call that a log said something of.
    alone
        Whether nothing but the calibration says what the call takes.
    """

    call: str
    seconds: float
    basis: Mapping[str, float]
    factor: float = 1.0
    host_factor: float = 1.0
    beside_s: float = 0.0
    learned: tuple[str, ...] = ()
    alone: bool = False


def evidence_of(timeline: Timeline, facts: Facts) -> tuple[Evidence, ...]:
    """What each call of a simulated iteration rests on, in call order.

    Parameters
    ----------
    timeline
        Simulated.
    facts
        What it was priced with.

    Returns
    -------
    tuple[Evidence, ...]
        One a span.
    """
    return tuple(_evidence(span, facts) for span in timeline.spans)


def _evidence(span: Span, facts: Facts) -> Evidence:
    layer = facts.calibration
    if span.role == CONTROLLER:
        alone = span.call in layer.seconds_per_sample
        return Evidence(span.call, span.duration_s, span.basis, beside_s=span.duration_s if alone else 0.0, alone=alone)
    names = FACTORS_OF.get(span.api, ())
    hosts = [layer.host[side] for side in ("generation", "training") if f"{side}_host" in names and side in layer.host]
    return Evidence(
        span.call,
        span.duration_s,
        span.basis,
        facts.correction(span.api, span.role),
        hosts[0] if hosts else 1.0,
        beside_s=layer.seconds_per_sample.get(span.api, 0.0) * facts.workload.num_samples,
        learned=tuple(name for name in names if name in layer.learned),
    )


def price_lines(timeline: Timeline, facts: Facts) -> list[str]:
    """A line for each call that takes time worth a line, then whose tables measured ones are."""
    large = [e for e in evidence_of(timeline, facts) if e.seconds >= LEAST_SHARE * timeline.iteration_s]
    lines = [
        f"{e.call} {_seconds(e.seconds)} s: {_shares(e)}{_moved(e, bool(facts.calibration.source))}" for e in large
    ]
    return [*lines, f"what is measured or interpolated is of {_tables(facts)}"]


def _shares(price: Evidence) -> str:
    if price.alone:
        return "the calibration alone"
    return ", ".join(f"{percent(share)} {name}" for name, share in price.basis.items() if share >= LEAST_SHARE)


def _moved(price: Evidence, calibrated: bool) -> str:
    """What a calibration did to a price; nothing where there is none."""
    if not calibrated or price.alone:
        return ""
    learned = [name.replace("_", " ") for name in price.learned]
    factors = ((price.factor, ""), (price.host_factor, "host times "))
    said = [f"{what}x {factor:.2f}" for factor, what in factors if abs(factor - 1.0) >= MOVED]
    of = f" ({', '.join(learned)})" if learned else ""
    parts = [f"{', '.join(said) or 'x 1.00'} by the calibration{of}"] if said or learned else []
    if price.beside_s:
        parts.append(f"{_seconds(price.beside_s)} s of it the calibration's own")
    return f"; {', '.join(parts) or 'not moved by the calibration'}"


def _tables(facts: Facts) -> str:
    if not any(source.startswith(MEASURED_HERE) for source in facts.device.spec.sources.values()):
        return f"the tables of {facts.device.spec.name}"
    engines = dict.fromkeys(engine.name for engine in (facts.training, facts.generation))
    own = [Path(name).name.removesuffix(".yaml") for name in engines if name.endswith(".yaml")]
    fitted = f"; host times of {', '.join(own)} are fitted to calls measured here" if own else ""
    return f"tables measured here by hybridmap profile{fitted}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"
