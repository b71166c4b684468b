"""Two measured runs beside each other, by stage and per token, with what chance alone would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridmap.runlogs.records import STEP
from hybridmap.runlogs.steady import steady

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.runlogs.records import LoggedStep, RunLog

DAYS_APART = 0.05
"""Relative: what two runs of one configuration differ by without a reason (docs/accuracy.md)."""
SURE = 1.96
LEAST_S = 1e-3


@dataclass(frozen=True)
class Difference:
    """A stage of two runs.

    ``ratio`` is second over first, per token where both logs say lengths; ``error`` is its standard error, relative,
    with ``DAYS_APART``.
    """

    stage: str
    first_s: float
    second_s: float
    ratio: float
    error: float

    @property
    def is_sure(self) -> bool:
        """Whether chance alone would hardly do it."""
        return abs(float(np.log(self.ratio))) > SURE * self.error


def differences(first: RunLog, second: RunLog) -> tuple[list[Difference], bool]:
    """The stages that both logs time, the whole iteration first, and whether they are compared per token."""
    steps = [steady(log).steps for log in (first, second)]
    per_token = all(step.lengths.response_mean for side in steps for step in side)
    found = []
    for name in (STEP, *_stages(steps)):
        sides = [_seconds(side, name) for side in steps]
        if any(len(side) == 0 or np.mean(side) < LEAST_S for side in sides):
            continue
        tokens = [_tokens(side, name) if per_token else np.ones(len(side)) for side in steps]
        rates = [seconds / own[: len(seconds)] for seconds, own in zip(sides, tokens, strict=True)]
        noise = sum(_noise(rate) for rate in rates)
        found.append(
            Difference(
                name,
                float(sides[0].mean()),
                float(sides[1].mean()),
                float(rates[1].mean() / rates[0].mean()),
                float(np.sqrt(noise + DAYS_APART**2)),
            )
        )
    return found, per_token


def _stages(sides: Sequence[Sequence[LoggedStep]]) -> list[str]:
    """What both logs time; where one times calls together, the other's are added up."""
    names = [{name for step in side for name in step.calls} for side in sides]
    widest = [one for one in set.union(*names) if not any(_parts(one) < _parts(other) for other in set.union(*names))]
    return sorted(one for one in widest if all(any(_parts(name) <= _parts(one) for name in side) for side in names))


def _parts(name: str) -> set[str]:
    return set(name.split("+"))


def _noise(rate: np.ndarray) -> float:
    """Variance of a mean, relative; of a single step a tenth is guessed."""
    return float(rate.std(ddof=1) / rate.mean()) ** 2 / len(rate) if len(rate) > 1 else 0.01


def _of(step: LoggedStep, name: str) -> float | None:
    if name == STEP:
        return step.iteration_s
    own = [s for call, s in step.calls.items() if _parts(call) <= _parts(name)]
    return sum(own) if own else None


def _seconds(steps: tuple[LoggedStep, ...], name: str) -> np.ndarray:
    return np.asarray([s for step in steps if (s := _of(step, name)) is not None])


def _tokens(steps: tuple[LoggedStep, ...], name: str) -> np.ndarray:
    """Tokens of a sample: the response's in generation, with the prompt's elsewhere."""
    generates = name.startswith("generate_sequences")
    return np.asarray(
        [
            (step.lengths.response_mean or 1.0) + (0.0 if generates else step.lengths.prompt_mean or 0.0)
            for step in steps
            if _of(step, name) is not None
        ]
    )
