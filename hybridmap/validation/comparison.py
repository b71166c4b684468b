"""Predicted and measured timelines of one plan, compared call by call and stage by stage. Pure: no files, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from hybridmap.validation.drafts import Kept
from hybridmap.validation.implementation import Built
from simulator.plan.plan import Record
from simulator.plan.seal import Sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.plan.dataflow import Stage
    from simulator.plan.timeline import Span, Timeline

Level = Literal["call", "stage", "iteration"]

TRIVIAL_S = 5e-4
"""Calls shorter than this in both (a transition that changes nothing) are shown, and no error is made of them."""

SAME_WORK = 0.05
"""Share of an iteration's tokens by which a run may differ from its plan before its times are of other work."""


class Timing(Record):
    """One line: predicted and measured seconds. ``low_s`` and ``high_s`` hold the middle half of the iterations.

    ``device_s`` is what of the measured time lies between events on the device, of calls on the critical path.
    """

    level: Level
    name: str
    role: str = ""
    pool: str = ""
    stage: str = ""
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    device_s: float = 0.0

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``; ``None`` where both are next to nothing."""
        if max(self.predicted_s, self.measured_s) < TRIVIAL_S or self.measured_s <= 0:
            return None
        return self.predicted_s / self.measured_s - 1.0

    @property
    def spread(self) -> float:
        """Half the width of the middle half over the median."""
        return (self.high_s - self.low_s) / 2.0 / self.measured_s if self.measured_s > 0 else 0.0


class Amount(Record):
    """Bytes of a pool's memory, or of rows or weights that a call took in: predicted and measured."""

    kind: Literal["memory", "transfer", "weights"]
    name: str
    predicted_bytes: int
    measured_bytes: int


class Comparison(Sealed):
    """A plan's iteration, predicted and measured; ``computed_from`` is the digest of both timelines.

    ``predicted_tokens`` and ``measured_tokens`` of an iteration: padding is none.
    """

    computed_from: str = ""
    iterations: int
    predicted_tokens: float
    measured_tokens: float
    calls: tuple[Timing, ...]
    stages: tuple[Timing, ...]
    iteration: Timing
    amounts: tuple[Amount, ...]
    builds: tuple[Built, ...] = ()
    drafts: tuple[Kept, ...] = ()

    @property
    def is_same_work(self) -> bool:
        """Whether what ran had about as many tokens as what was priced."""
        return abs(self.measured_tokens - self.predicted_tokens) <= SAME_WORK * self.predicted_tokens

    def worst(self, stages: Sequence[str]) -> float | None:
        """Largest absolute error of these stages; ``None`` if none of them has one."""
        errors = [abs(t.error) for t in self.stages if t.name in stages and t.error is not None]
        return max(errors) if errors else None


def compare(
    predicted: Timeline,
    predicted_iteration_s: float,
    measured: Sequence[Timeline],
    amounts: Sequence[Amount] = (),
    builds: Sequence[Built] = (),
    drafts: Sequence[Kept] = (),
) -> Comparison:
    """Compare a prediction without dispatch, whose whole iteration takes ``predicted_iteration_s`` with it.

    ``measured`` are iterations after warm-up, at least one. Measured calls that were not predicted (there are none
    unless the dataflows differ) are left out. Time between calls is ``other`` on both sides.
    """
    calls = [_call(span, measured) for span in predicted.spans]
    names = [s for s in predicted.stages if s != "other"]
    stages = [_stage(name, predicted.stages[name], measured) for name in names]
    spent = sum(predicted.stages[name] for name in names)
    between = [m.iteration_s - sum(m.stages.get(name, 0.0) for name in names) for m in measured]
    stages.append(_timing("stage", "other", predicted_iteration_s - spent, between))
    whole = _timing("iteration", "iteration", predicted_iteration_s, [m.iteration_s for m in measured])
    return Comparison(
        iterations=len(measured),
        predicted_tokens=predicted.tokens,
        measured_tokens=float(np.median([m.tokens for m in measured])),
        calls=tuple(c for c in calls if c is not None),
        stages=tuple(s for s in stages if max(s.predicted_s, s.measured_s) > 0),
        iteration=whole,
        amounts=tuple(amounts),
        builds=tuple(builds),
        drafts=tuple(drafts),
    )


def _stage(name: Stage, predicted_s: float, measured: Sequence[Timeline]) -> Timing:
    found = _timing("stage", name, predicted_s, [m.stages.get(name, 0.0) for m in measured])
    on_device = [
        sum(s.counts.device_s for s in m.spans if s.stage == name and s.critical and s.counts) for m in measured
    ]
    return found.model_copy(update={"device_s": float(np.median(on_device))})


def _call(span: Span, measured: Sequence[Timeline]) -> Timing | None:
    spans = [s for timeline in measured for s in timeline.spans if s.call == span.call]
    if not spans:
        return None
    found = _timing("call", span.call, span.rank_s, [s.rank_s for s in spans])
    device_s = float(np.median([s.counts.device_s if s.counts else 0.0 for s in spans]))
    return found.model_copy(update={"role": span.role, "pool": span.pool, "stage": span.stage, "device_s": device_s})


def _timing(level: Level, name: str, predicted_s: float, times: Sequence[float]) -> Timing:
    low, median, high = (float(x) for x in np.quantile(np.asarray(times), (0.25, 0.5, 0.75)))
    return Timing(level=level, name=name, predicted_s=predicted_s, measured_s=median, low_s=low, high_s=high)


def memory_amounts(predicted: Timeline, measured: Timeline) -> list[Amount]:
    """Peak memory of each pool that both know."""
    return [
        Amount(
            kind="memory", name=pool, predicted_bytes=memory.used_bytes, measured_bytes=measured.memory[pool].used_bytes
        )
        for pool, memory in predicted.memory.items()
        if pool in measured.memory
    ]
