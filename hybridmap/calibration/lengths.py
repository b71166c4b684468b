"""The distribution of lengths that a log speaks of: mean, tail and share at the limit."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from profiles.calibration import LearnedLengths
from profiles.workload import LengthDistribution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.runlogs.records import LoggedStep

LEAST_SIGMA, MOST_SIGMA = 0.05, 2.5


def learn_lengths(steps: Sequence[LoggedStep], limit: int) -> LearnedLengths | None:
    """Means over the steps; the 99th percentile from the share of responses at ``limit``. ``None`` without a mean.

    A mean beyond the limit that other steps keep is damage.
    """
    every = [s.lengths.response_mean for s in steps if s.lengths.response_mean]
    if not every:
        return None
    means = [mean for mean in every if mean <= limit] or every
    third = max(1, len(means) // 3)
    clipped, mean = _mean([s.lengths.clipped for s in steps]), fmean(means)
    return LearnedLengths(
        response_mean=mean,
        response_max=_mean([s.lengths.response_max for s in steps]),
        response_p99=None if clipped is None else percentile_99(mean, limit, clipped),
        clipped=clipped,
        prompt_mean=_mean([s.lengths.prompt_mean for s in steps]),
        drift=fmean(means[-third:]) / fmean(means[:third]) - 1.0,
    )


def percentile_99(mean: float, limit: int, clipped: float) -> float | None:
    """99th percentile, before clipping, of log-normal lengths of which so many reach ``limit``.

    ``None`` where none or nearly all do: then the share says nothing of the tail.
    """
    if not 1e-4 <= clipped <= 0.9 or not mean < 0.999 * limit:
        return None

    def excess(sigma: float) -> float:
        return _share_at_limit(mean, limit, sigma) - clipped

    low, high = excess(LEAST_SIGMA), excess(MOST_SIGMA)
    if low * high > 0:
        return None
    sigma = brentq(excess, LEAST_SIGMA, MOST_SIGMA)
    return max(float(np.exp(_median_log(mean, limit, sigma) + 2.326 * sigma)), 1.001 * mean)


def with_lengths(response: LengthDistribution, mean: float, p99: float | None) -> LengthDistribution:
    """A job's responses with the mean and the tail of a log; a mean at the limit is a fixed length."""
    limit = response.maximum
    if mean >= 0.999 * limit:
        return LengthDistribution.fixed(limit)
    return LengthDistribution("lognormal", mean, limit, p99)


def _share_at_limit(mean: float, limit: int, sigma: float) -> float:
    return float(1.0 - ndtr((np.log(limit) - _median_log(mean, limit, sigma)) / sigma))


def _median_log(mean: float, limit: int, sigma: float) -> float:
    """Mean of the logarithm such that lengths clipped at ``limit`` have the mean."""

    def excess(mu: float) -> float:
        z = (np.log(limit) - mu) / sigma
        return float(np.exp(mu + sigma**2 / 2) * ndtr(z - sigma) + limit * (1.0 - ndtr(z)) - mean)

    return float(brentq(excess, np.log(mean) - 12.0, np.log(limit) + 12.0))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
