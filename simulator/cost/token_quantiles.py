"""How many tokens several samples have together: the quantiles of a sum of lengths drawn from the job's distribution.

Source: the sum's distribution is the power of one length's, by the fast Fourier transform of its probabilities on a
grid of ``GRID`` steps. Deviation: a length is off by half a step (0.1 % of the longest). Of more than ``EXACT`` samples
the sum is nearly normal: Cornish and Fisher (1938), with the term of the skewness.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from profiles import normal

if TYPE_CHECKING:
    from profiles.records import Floats
    from profiles.workload import LengthDistribution, Workload

TYPICAL = 0.95
"""Share of the micro-batches that have at most the tokens which a plan must hold."""

RARE = 0.9999
"""Share of the micro-batches that a plan of the search holds when it uses its headroom up."""

ALWAYS = 1.0
"""Every sample at its maximum length."""

GRID = 512
"""Steps between no token and the longest sample."""

DRAWN = 8192
"""Quantiles that stand for one length: what is rarer than one in so many is not there."""

EXACT = 32
"""Samples up to which the sum is taken as it is."""


def tokens_at(workload: Workload, num_samples: Floats, level: float) -> Floats:
    """Tokens that so many samples have at most, at a level of probability; never more than all at the longest.

    Parameters
    ----------
    workload
        The job's samples.
    num_samples
        Samples that are summed up, any shape; between whole numbers in a straight line.
    level
        From 0 to 1 (``ALWAYS``): all at the longest.

    Returns
    -------
    Floats
        Tokens, the same shape.

    Notes
    -----
    Source: see the head of the file. Deviation: samples are independent, sorted or balanced batches vary less; below
    ``ALWAYS`` prompts have their mean length.
    """
    most = num_samples * float(workload.padded_length)
    if level >= ALWAYS:
        return np.asarray(most, dtype=np.float64)
    if workload.response.kind == "fixed":
        return np.asarray(num_samples * workload.trained_tokens_per_sample, dtype=np.float64)
    few, mean, deviation, skewness = _few(workload.trained_prompt_tokens, workload.response, level)
    n = np.maximum(np.asarray(num_samples, dtype=np.float64), 1.0)
    z = float(normal.quantile(level))
    many = n * mean + np.sqrt(n) * deviation * (z + (z * z - 1.0) * skewness / (6.0 * np.sqrt(n)))
    found = np.where(n <= EXACT, np.interp(n, np.arange(1, EXACT + 1), few), many)
    return np.asarray(np.minimum(found, most), dtype=np.float64)


@functools.lru_cache(maxsize=1024)
def _few(prompt_tokens: float, response: LengthDistribution, level: float) -> tuple[Floats, float, float, float]:
    """The quantile of the sum of 1, 2, .. ``EXACT`` samples; mean, deviation and skewness of one."""
    lengths = prompt_tokens + response.sample(DRAWN)
    sums, step = _sums(prompt_tokens, response)
    few = np.asarray([np.searchsorted(cumulative, level) * step for cumulative in sums], dtype=np.float64)
    few[0] = prompt_tokens + float(response.quantile(np.asarray(level)))
    deviation = float(lengths.std())
    skewness = float(((lengths - lengths.mean()) ** 3).mean()) / deviation**3 if deviation else 0.0
    return few, float(lengths.mean()), deviation, skewness


@functools.lru_cache(maxsize=64)
def _sums(prompt_tokens: float, response: LengthDistribution) -> tuple[tuple[Floats, ...], float]:
    """Probabilities that the sum of 1, 2, .. ``EXACT`` samples is at most so many steps; tokens of a step."""
    step = (prompt_tokens + response.maximum) / GRID
    steps = np.rint((prompt_tokens + response.sample(DRAWN)) / step).astype(np.int64)
    one = np.bincount(steps, minlength=GRID + 1) / DRAWN
    length = 2 ** int(np.ceil(np.log2(EXACT * GRID + 1)))
    spectrum = np.fft.rfft(one, length)
    powers = (np.fft.irfft(spectrum**n, length)[: n * GRID + 1] for n in range(1, EXACT + 1))
    return tuple(np.cumsum(np.maximum(power, 0.0)) for power in powers), step
