"""The posterior of factors and fixed seconds: a normal prior, and a Gauss-Newton search (Bishop 2006, 3.3, 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from profiles.calibration import FACTORS
from simulator.calibration.factors import Belief, prior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats

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
USUAL = (1.0,)
"""Of one number of one step: whether prices or that step are far from the usual is not in it."""

ROUNDS, SMALL_MOVE = 6, 1e-3
STEP = 0.05

FIXED_SHARE = 0.2
"""Standard deviation of what a call takes at any length, over all it takes: hand-over of padded batches, set-up, and
copies of parameters from the host."""


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


class Predictor(Protocol):
    """What predicts observations under factors, and knows which of them are of one run."""

    def seconds(self, observed: Observation, log_factors: Floats) -> float:
        """Predicted seconds of what was observed."""

    def same_run(self, one: int, other: int) -> bool:
        """Whether two cases are one plan, so that what its prices are off they are off together."""


@dataclass(frozen=True)
class Posterior:
    """What observations say.

    Parameters
    ----------
    belief
        Of the factors.
    shares
        By group of calls: of its seconds, what it takes at any length.
    seconds
        The same in seconds.
    joint
        Covariance of the factors' logarithms and these shares, ``[F + G, F + G]``.
    """

    belief: Belief
    shares: dict[tuple[str, ...], float]
    seconds: dict[tuple[str, ...], float]
    joint: Floats


def fit_to(
    prices: Predictor,
    observations: Sequence[Observation],
    groups: Sequence[tuple[str, ...]] = (),
    scales: Sequence[float] = (),
) -> Posterior:
    """What observations make of the factors, and of seconds that a group of calls takes at any length.

    Parameters
    ----------
    prices
        What predicts them.
    observations
        What was measured.
    groups
        Calls together, of which observations at several lengths may tell such seconds from a factor.
    scales
        How wide the prior may be, where it is not what the observations can tell.

    Returns
    -------
    Posterior
        Its mode, and the covariance by Laplace's approximation, with the most probable of these scales.
    """
    if not observations:
        return Posterior(prior(), {}, {}, prior().covariance)
    size = {g: float(np.mean([o.seconds for o in observations if o.calls == g])) for g in groups}
    beside = np.asarray([[size[g] * (o.calls == g) for g in groups] for o in observations]).reshape(
        len(observations), len(groups)
    )
    tried = [_mode(prices, observations, prior(scale), beside) for scale in scales or _told_by(observations)]
    _, belief, found, joint = max(tried, key=lambda one: one[0])
    shares = dict(zip(groups, found.tolist(), strict=True))
    return Posterior(belief, shares, {g: share * size[g] for g, share in shares.items()}, joint)


def _told_by(observations: Sequence[Observation]) -> tuple[float, ...]:
    """The scales that observations can tell apart.

    Several show by their spread how far prices are off, and a mean of many steps has an error that was measured. A lone
    number known no better than a single step has neither, and a wide prior is as probable as a wide error of its own:
    the number then moves prices by the same share however far off it is.
    """
    lone = len(observations) == 1 and observations[0].error >= SINGLE_STEP_ERROR
    return USUAL if lone else SCALES


def _mode(
    prices: Predictor, observations: Sequence[Observation], start: Belief, beside: Floats
) -> tuple[float, Belief, Floats, Floats]:
    """Logarithm of the evidence with a scale's own probability (MacKay 1992), belief, shares, and covariance of both.

    Shares are what each group takes beside, of its seconds; they have a normal prior, too, cut off below 0.
    """
    num, shares = len(FACTORS), beside.shape[1]
    covariance = np.eye(num + shares) * FIXED_SHARE**2
    covariance[:num, :num] = start.covariance
    prior_precision, mean = np.linalg.inv(covariance), np.concatenate([start.log_factors, np.zeros(shares)])
    at, errors = mean.copy(), _errors(prices, observations)
    measured, weight = np.log([o.seconds for o in observations]), np.linalg.inv(errors)
    precision, now, slopes = prior_precision, measured, np.zeros((len(observations), len(at)))
    for _ in range(ROUNDS):
        now, slopes = _linear(prices, observations, at, beside)
        precision = slopes.T @ weight @ slopes + prior_precision
        downhill = slopes.T @ weight @ (measured - now) - prior_precision @ (at - mean)
        moved = at + np.clip(np.linalg.solve(precision, downhill), -1.0, 1.0)
        moved[num:] = np.maximum(moved[num:], 0.0)
        move, at = moved - at, moved
        if np.abs(move).max() < SMALL_MOVE:
            break
    before = measured - (now + slopes @ (mean - at + move))  # what the prior's prices leave, linearly
    spread = errors + slopes @ covariance @ slopes.T
    evidence = -0.5 * float(before @ np.linalg.solve(spread, before)) - 0.5 * float(np.linalg.slogdet(spread)[1])
    evidence -= 0.5 * float(np.log(start.scale) / SCALE_SPREAD) ** 2
    left = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    return evidence, Belief(at[:num], left[:num, :num], start.scale), at[num:], left


def _errors(prices: Predictor, observations: Sequence[Observation]) -> Floats:
    """Covariance of the measured logarithms, ``[O, O]``: what prices of a call are off is the same at every length."""
    found = np.diag([o.error**2 + LEAST_ERROR**2 for o in observations])
    for i, one in enumerate(observations):
        for j, other in enumerate(observations):
            if one.calls == other.calls and prices.same_run(one.case, other.case):
                found[i, j] += MODEL_ERROR**2 + (UNNAMED_ERROR**2 if one.calls == (WHOLE,) else 0.0)
    return found


def _linear(
    prices: Predictor, observations: Sequence[Observation], at: Floats, beside: Floats
) -> tuple[Floats, Floats]:
    """Logarithms of the predictions, ``[O]``, and their slopes, ``[O, F]``, with those of what comes beside."""
    now = _logs(prices, observations, at, beside)
    slopes = np.empty((len(observations), len(at)))
    for i in range(len(at)):
        moved = at.copy()
        moved[i] += STEP
        slopes[:, i] = (_logs(prices, observations, moved, beside) - now) / STEP
    return now, slopes


def _logs(prices: Predictor, observations: Sequence[Observation], at: Floats, beside: Floats) -> Floats:
    alone = np.asarray([prices.seconds(observed, at[: len(FACTORS)]) for observed in observations])
    return np.asarray(np.log(np.maximum(alone + beside @ at[len(FACTORS) :], 1e-9)), dtype=np.float64)
