"""Factors from measured seconds: a normal prior in logarithms, and a Gauss-Newton search (Bishop 2006, 3.3, 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from profiles.calibration import CALLS, FACTORS, factors_of_calls
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

LEAST_ERROR = 0.005
"""Relative: no mean of steps is known better."""

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

    def same_run(self, one: int, other: int) -> bool:
        """Whether two cases are one plan, at different lengths."""
        return self.cases[one].plan == self.cases[other].plan

    def calls_s(self, index: int, log_factors: Floats) -> dict[str, float]:
        """Seconds of every call of a case, alone."""
        at = dict(zip(FACTORS, log_factors.tolist(), strict=True))
        factor_of = factors_of_calls({name: float(np.exp(value)) for name, value in at.items()})
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


class Predictor(Protocol):
    """What predicts observations under factors, and knows which of them are of one run."""

    def seconds(self, observed: Observation, log_factors: Floats) -> float:
        """Predicted seconds of what was observed."""

    def same_run(self, one: int, other: int) -> bool:
        """Whether two cases are one plan, so that what its prices are off they are off together."""


def fit(
    cases: Sequence[Case],
    observations: Sequence[Observation],
    seconds_per_sample: Mapping[str, float] | None = None,
    before: Belief | None = None,
) -> Belief:
    """What measured seconds of runs make of the factors.

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
        As of ``fit_to``.
    """
    return fit_to(Prices(cases, seconds_per_sample or {}), observations, before or prior())


def fit_to(prices: Predictor, observations: Sequence[Observation], start: Belief) -> Belief:
    """What observations make of the factors.

    Parameters
    ----------
    prices
        What predicts them.
    observations
        What was measured.
    start
        What was believed before.

    Returns
    -------
    Belief
        The mode of the posterior and its covariance by Laplace's approximation.
    """
    at = start.log_factors.copy()
    if not observations:
        return start
    measured = np.log([o.seconds for o in observations])
    weight, precision = np.linalg.inv(_errors(prices, observations)), start.precision
    for _ in range(ROUNDS):
        now, slopes = _linear(prices, observations, at)
        curvature = slopes.T @ weight @ slopes + start.precision
        downhill = slopes.T @ weight @ (measured - now) - start.precision @ (at - start.log_factors)
        move = np.clip(np.linalg.solve(curvature, downhill), -1.0, 1.0)
        at, precision = at + move, curvature
        if np.abs(move).max() < 1e-4:
            break
    return Belief(at, np.asarray(np.linalg.inv(precision), dtype=np.float64))


def planned_s(plan: Plan, facts: Facts) -> dict[str, float]:
    """Seconds of every call of a plan alone, and of ``WHOLE`` the iteration, as ``simulate`` prices them."""
    calls = {key: float(cost.time.s) for key, cost in price_calls(plan, facts).items()}
    return calls | {WHOLE: max(record.end_s for record in scheduled(plan, facts, calls))}


def _errors(prices: Predictor, observations: Sequence[Observation]) -> Floats:
    """Covariance of the measured logarithms, ``[O, O]``: what prices of a call are off is the same at every length."""
    found = np.diag([o.error**2 + LEAST_ERROR**2 for o in observations])
    for i, one in enumerate(observations):
        for j, other in enumerate(observations):
            if one.calls == other.calls and prices.same_run(one.case, other.case):
                found[i, j] += MODEL_ERROR**2
    return found


def _linear(prices: Predictor, observations: Sequence[Observation], at: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the predictions, ``[O]``, and their slopes, ``[O, F]``."""
    now = _logs(prices, observations, at)
    slopes = np.empty((len(observations), len(FACTORS)))
    for i in range(len(FACTORS)):
        moved = at.copy()
        moved[i] += STEP
        slopes[:, i] = (_logs(prices, observations, moved) - now) / STEP
    return now, slopes


def _logs(prices: Predictor, observations: Sequence[Observation], at: Floats) -> Floats:
    return np.log([max(prices.seconds(observed, at), 1e-9) for observed in observations])


def deviation(plan: Plan, facts: Facts) -> float:
    """What a calibration leaves open of a plan's time.

    Parameters
    ----------
    plan
        Any plan.
    facts
        Calibrated.

    Returns
    -------
    float
        Standard deviation of the logarithm of the iteration time: of the factors, and ``MODEL_ERROR``.
    """
    layer = facts.calibration
    covariance = np.asarray(layer.covariance)
    whole = {name: layer.factors[calls[0]] for name, calls in CALLS.items()}
    whole["reference"] /= whole["scoring"]
    at = np.log([1.0 if name in HOST else whole[name] for name in FACTORS])  # host times are in the engines already
    prices = Prices([Case(plan, facts)], layer.seconds_per_sample)
    _, slopes = _linear(prices, [Observation(0, (WHOLE,), 1.0)], at)
    return float(np.sqrt(slopes[0] @ covariance @ slopes[0] + MODEL_ERROR**2))
