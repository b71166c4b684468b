"""What is known of the time that each system's controller spends between calls: ranges, not prices.

Every trainer is priced with the same assumed time a token (``controller_s_per_token``). No published table states it;
logs leave it over, when all that they name is taken from a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.facts import Facts


@dataclass(frozen=True)
class BetweenCalls:
    """Seconds a token between the calls of a system's iteration, from the least to the most, and where that is read."""

    low_s_per_token: float
    high_s_per_token: float
    source: str


_UNKNOWN = "no log of it is known; as wide as the others together"

BETWEEN_CALLS: dict[str, BetweenCalls] = {
    "verl": BetweenCalls(
        0.44e-6,
        2.82e-6,
        "three logs, what no timer of theirs names: 132 steps on 8 H100, 0.44 us a token, 0.66 with the advantages; "
        "two of an older verl on MI300X, 1.4 and 2.8 us with them",
    ),
    "nemo-rl": BetweenCalls(
        0.0,
        1.82e-6,
        "at most what the one run with all stages leaves, 1.8 us a token, the validation of two steps in it",
    ),
    "openrlhf": BetweenCalls(0.0, 2.82e-6, _UNKNOWN),
    "slime": BetweenCalls(0.0, 2.82e-6, _UNKNOWN),
}
"""By system, whatever its trainer."""


def between_calls_text(system: str, facts: Facts) -> str:
    """What is assumed for the time between calls of a job, and how far off that may be on a system."""
    known, tokens, engine = BETWEEN_CALLS[system], facts.workload.tokens, facts.training
    assumed_s, low_s, high_s = (
        each * tokens for each in (engine.controller_s_per_token, known.low_s_per_token, known.high_s_per_token)
    )
    return (
        f"{system}'s time between calls is assumed, {assumed_s:.1f} s an iteration; it may be {low_s:.1f} to "
        f"{high_s:.1f} s ({known.source})"
    )
