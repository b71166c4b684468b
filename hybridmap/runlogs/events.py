"""Metrics as they stand in a log, (step, name, value), gathered into steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hybridmap.runlogs.names import KNOWN, SYSTEMS, MetricNames
from hybridmap.runlogs.records import STEP, Lengths, LoggedStep, RunLog
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_STEPS = 1_000_000
MOST_S = 1e7
"""A step of four months is no measurement."""
MOST_TOKENS, MOST_GIB = 1e8, 1e5
MOST = {
    **{metric: MOST_S for names in SYSTEMS for metric in names.seconds},
    **{metric: 1.0 if f == "clipped" else MOST_TOKENS for names in SYSTEMS for metric, f in names.lengths.items()},
    **{metric: MOST_GIB for names in SYSTEMS for metric in (*names.memory, *names.allocated)},
}
"""Beyond it a metric is damage: a share of more than all, or what no machine has."""


class Event(NamedTuple):
    """One metric of one step."""

    step: int
    name: str
    value: float


def wanted(name: str) -> bool:
    """Whether a metric is one that is read."""
    return name in KNOWN


def gathered(events: Iterable[Event], source: str, damaged: int = 0) -> RunLog:
    """The steps of a log. Of a metric that a step has twice, as after a restart, the later one counts.

    ``InputError`` where no known system's times are among them, or where there are more than ``MOST_STEPS`` steps.
    """
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    systems: Counter[str] = Counter()
    for step, name, value in events:
        if not math.isfinite(value) or not 0 <= value <= MOST.get(name, math.inf):
            damaged += 1
            continue
        by_step[step][name] = value
        systems.update(names.system for names in SYSTEMS if name in names.seconds)
        if len(by_step) > MOST_STEPS:
            raise InputError(f"{source}: more than {MOST_STEPS:,} steps; cut the log to the steps that matter")
    if not systems:
        looked = ", ".join(f"{names.prefix}* ({names.system})" for names in SYSTEMS)
        raise InputError(f"{source}: no times of a run's stages; looked for {looked} in {len(by_step):,} steps")
    names = next(names for names in SYSTEMS if names.system == systems.most_common(1)[0][0])
    steps = [_step(number, metrics, names) for number, metrics in sorted(by_step.items())]
    timed = tuple(step for step in steps if step.calls or STEP in step.seconds)
    return RunLog(names.system, source, timed, damaged)


def _step(number: int, metrics: Mapping[str, float], names: MetricNames) -> LoggedStep:
    seconds: dict[str, float] = {}
    for metric, call in names.seconds.items():
        if metric in metrics:
            seconds[call] = seconds.get(call, 0.0) + metrics[metric]
    lengths = Lengths(**{field: metrics[metric] for metric, field in names.lengths.items() if metric in metrics})
    reserved, allocated = (
        max((metrics[m] for m in some if m in metrics), default=None) for some in (names.memory, names.allocated)
    )
    return LoggedStep(number, seconds, lengths, reserved, allocated or None)
