"""Factors from measured seconds: a normal prior in logarithms, and one Gauss-Newton search (Bishop 2006, 3.3 and 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.calibration import CALLS, FACTORS
from simulator.calibration.factors import Belief, calibrated, calibration_of, prior
from simulator.play.simulate import price_calls, scheduled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

WHOLE = "step"
"""Stands for the whole iteration among the calls of an observation."""

MODEL_ERROR = 0.03
"""Relative: what prices of one call are off even with the right factors, between two layouts of a run."""

ROUNDS = 6
STEP = 0.05
HOST = ("generation_host", "training_host")


@dataclass(frozen=True)
class Case:
    """A plan that was run, and the facts of what it ran, uncalibrated."""

    plan: Plan
    facts: Facts


@dataclass(frozen=True)
class Observation:
    """Seconds of calls together in one case.

    Parameters
    ----------
    case
        Index of the case.
    calls
        Keys of the dataflow that were timed together; ``WHOLE`` for the iteration.
    seconds
        Measured mean.
    error
        Standard error of the mean, relative.
    """

    case: int
    calls: tuple[str, ...]
    seconds: float
    error: float = 0.0


class Prices:
    """Seconds of observations under factors; calls are priced once for each pair of host factors."""

    def __init__(self, cases: Sequence[Case], seconds_per_sample: Mapping[str, float]) -> None:
        self.cases, self.seconds_per_sample = tuple(cases), dict(seconds_per_sample)
        self._priced: dict[tuple[int, float, float], dict[str, float]] = {}

    def seconds(self, observed: Observation, log_factors: Floats) -> float:
        """Predicted seconds of what was observed."""
        case = self.cases[observed.case]
        calls = self.calls_s(observed.case, log_factors)
        if observed.calls == (WHOLE,):
            return max(record.end_s for record in scheduled(case.plan, case.facts, calls))
        return sum(calls[key] for key in observed.calls)

    def calls_s(self, index: int, log_factors: Floats) -> dict[str, float]:
        """Seconds of every call of a case, alone."""
        at = dict(zip(FACTORS, log_factors.tolist(), strict=True))
        factor_of = {api: float(np.exp(at[name])) for name, apis in CALLS.items() for api in apis}
        alone = self._alone(index, at)
        apis = {call.key: call.api for call in self.cases[index].facts.dataflow.calls}
        return {key: s * factor_of.get(apis[key], 1.0) for key, s in alone.items()}

    def _alone(self, index: int, at: Mapping[str, float]) -> dict[str, float]:
        key = (index, round(at["generation_host"], 6), round(at["training_host"], 6))
        if key not in self._priced:
            case = self.cases[index]
            only_host = np.asarray([at[name] if name in HOST else 0.0 for name in FACTORS])
            layer = calibration_of(Belief(only_host, np.eye(len(FACTORS))), self.seconds_per_sample)
            facts = calibrated(case.facts, layer)
            self._priced[key] = {call: float(cost.time.s) for call, cost in price_calls(case.plan, facts).items()}
        return self._priced[key]


def fit(
    cases: Sequence[Case],
    observations: Sequence[Observation],
    seconds_per_sample: Mapping[str, float] | None = None,
    before: Belief | None = None,
) -> Belief:
    """What measured seconds make of the factors.

    Parameters
    ----------
    cases
        What was run.
    observations
        What was measured there.
    seconds_per_sample
        Of the controller's calls, as measured.
    before
        What was believed before; else ``prior``.

    Returns
    -------
    Belief
        The mode of the posterior and its covariance by Laplace's approximation.
    """
    start = before or prior()
    prices, at = Prices(cases, seconds_per_sample or {}), start.log_factors.copy()
    if not observations:
        return start
    measured = np.log([o.seconds for o in observations])
    weight = 1.0 / np.asarray([o.error**2 + MODEL_ERROR**2 for o in observations])
    precision = start.precision
    for _ in range(ROUNDS):
        now, slopes = _linear(prices, observations, at)
        curvature = slopes.T @ (weight[:, None] * slopes) + start.precision
        downhill = slopes.T @ (weight * (measured - now)) - start.precision @ (at - start.log_factors)
        move = np.clip(np.linalg.solve(curvature, downhill), -1.0, 1.0)
        at, precision = at + move, curvature
        if np.abs(move).max() < 1e-4:
            break
    return Belief(at, np.linalg.inv(precision))


def _linear(prices: Prices, observations: Sequence[Observation], at: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the predictions, ``[O]``, and their slopes, ``[O, F]``."""
    now = _logs(prices, observations, at)
    slopes = np.empty((len(observations), len(FACTORS)))
    for i in range(len(FACTORS)):
        moved = at.copy()
        moved[i] += STEP
        slopes[:, i] = (_logs(prices, observations, moved) - now) / STEP
    return now, slopes


def _logs(prices: Prices, observations: Sequence[Observation], at: Floats) -> Floats:
    return np.log([max(prices.seconds(observed, at), 1e-9) for observed in observations])


def deviation(case: Case, belief: Belief, seconds_per_sample: Mapping[str, float] | None = None) -> float:
    """Standard deviation of the logarithm of a case's iteration time: what the factors leave open, and ``MODEL_ERROR``."""
    observed = [Observation(0, (WHOLE,), 1.0)]
    _, slopes = _linear(Prices([case], seconds_per_sample or {}), observed, belief.log_factors)
    return float(np.sqrt(slopes[0] @ belief.covariance @ slopes[0] + MODEL_ERROR**2))
