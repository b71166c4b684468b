"""Factors from measured seconds: a normal prior in logarithms, and a Gauss-Newton search (Bishop 2006, 3.3, 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from profiles.calibration import FACTORS, factors_of_calls
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

UNNAMED_ERROR = 0.07
"""Relative, of whole steps beside ``MODEL_ERROR``: data, logging and waits have no price and are no call's."""

SINGLE_STEP_ERROR = 0.08
"""Relative: repeats of one configuration spread by 5 %, days apart by up to 15 %."""

LEAST_ERROR = 0.01
"""Relative: no mean of steps is known better, beside those of other lengths; with half of it they told apart what they
cannot."""

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""How wide the prior may be: prices of some machines are better known than those of others, and the run says which."""
SCALE_SPREAD = 0.5
"""Standard deviation of a scale's logarithm, so that a run's own noise does not choose it."""

ROUNDS, SMALL_MOVE = 6, 1e-3
STEP = 0.05
GRID = 0.25
"""Between host factors this far apart, in logarithms, the logarithm of a price is taken to be straight."""

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
    """Seconds of observations under factors; calls are priced at points of the host factors and read off between."""

    def __init__(self, cases: Sequence[Case], seconds_per_sample: Mapping[str, float]) -> None:
        self.cases, self.seconds_per_sample = tuple(cases), dict(seconds_per_sample)
        self._priced: dict[tuple[int, int], dict[str, float]] = {}

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
        apis = {call.key: call.api for call in self.cases[index].facts.dataflow.calls}
        return {
            key: self._alone_s(index, key, at[_host_of(api)]) * factor_of.get(api, 1.0) for key, api in apis.items()
        }

    def _alone_s(self, index: int, key: str, host: float) -> float:
        """Seconds of a call at a host factor's logarithm, between two points at which it was priced."""
        low = int(np.floor(host / GRID))
        ends = [self._at(index, low)[key], self._at(index, low + 1)[key]]
        if min(ends) <= 0:
            return ends[0]
        part = host / GRID - low
        return float(np.exp((1.0 - part) * np.log(ends[0]) + part * np.log(ends[1])))

    def _at(self, index: int, point: int) -> dict[str, float]:
        """Seconds of every call with the host times of both engines at one point; each call has one of them."""
        if (index, point) not in self._priced:
            case = self.cases[index]
            only_host = np.asarray([point * GRID if name in HOST else 0.0 for name in FACTORS])
            layer = calibration_of(Belief(only_host, np.eye(len(FACTORS))), self.seconds_per_sample)
            priced = price_calls(case.plan, calibrated(case.facts, layer))
            self._priced[index, point] = {call: float(cost.time.s) for call, cost in priced.items()}
        return self._priced[index, point]


def _host_of(api: str) -> str:
    return "generation_host" if api == "generate_sequences" else "training_host"


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

    Returns
    -------
    Belief
        As of ``fit_to``.
    """
    return fit_to(Prices(cases, seconds_per_sample or {}), observations)


def fit_to(prices: Predictor, observations: Sequence[Observation]) -> Belief:
    """What observations make of the factors, starting from ``prior``.

    Parameters
    ----------
    prices
        What predicts them.
    observations
        What was measured.

    Returns
    -------
    Belief
        The mode of the posterior and its covariance by Laplace's approximation, with the most probable of ``SCALES``.
    """
    if not observations:
        return prior()
    tried = [_mode(prices, observations, prior(scale)) for scale in SCALES]
    return max(tried, key=lambda found: found[0])[1]


def _mode(prices: Predictor, observations: Sequence[Observation], start: Belief) -> tuple[float, Belief]:
    """Logarithm of the evidence with a scale's own probability (MacKay 1992), and the belief from this prior."""
    prior_precision = start.precision
    at, errors = start.log_factors.copy(), _errors(prices, observations)
    measured, weight = np.log([o.seconds for o in observations]), np.linalg.inv(errors)
    precision, now, slopes = prior_precision, measured, np.zeros((len(observations), len(FACTORS)))
    for _ in range(ROUNDS):
        now, slopes = _linear(prices, observations, at)
        precision = slopes.T @ weight @ slopes + prior_precision
        downhill = slopes.T @ weight @ (measured - now) - prior_precision @ (at - start.log_factors)
        move = np.clip(np.linalg.solve(precision, downhill), -1.0, 1.0)
        at = at + move
        if np.abs(move).max() < SMALL_MOVE:
            break
    before = measured - (now + slopes @ (start.log_factors - at + move))  # what the prior's prices leave, linearly
    spread = errors + slopes @ np.linalg.inv(prior_precision) @ slopes.T
    evidence = -0.5 * float(before @ np.linalg.solve(spread, before)) - 0.5 * float(np.linalg.slogdet(spread)[1])
    evidence -= 0.5 * float(np.log(start.scale) / SCALE_SPREAD) ** 2
    return evidence, Belief(at, np.asarray(np.linalg.inv(precision), dtype=np.float64), start.scale)


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
                found[i, j] += MODEL_ERROR**2 + (UNNAMED_ERROR**2 if one.calls == (WHOLE,) else 0.0)
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
