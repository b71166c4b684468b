"""Continuous batching that never drains: what the sequences hold that run at some moment of an endless rollout.

Longer responses run at more moments, so those that run are a length-biased sample, each somewhere between its first
token and its last: response so far ``E[L^2] / 2 E[L]`` on the mean, and ``E[L^3] / 3 E[L]`` its mean square.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats, Ints
    from profiles.workload import LengthDistribution

NUM_QUANTILES = 512
"""Quantiles of the response lengths that means are taken over."""

PEAK_DEVIATIONS = 3.0
"""Standard deviations of what all hold above its mean at a peak: about one decode step in a thousand needs more."""


@dataclass(frozen=True)
class SteadyState:
    """Sequences that run at some moment, in tokens.

    Parameters
    ----------
    mean_response
        Of all responses; those that run are longer.
    mean_context, context_deviation, longest_context
        What a running sequence has in the cache: on the mean, its standard deviation, the most.
    in_step
        All responses are equal, so sequences that began together are full together.
    """

    mean_response: float
    mean_context: float
    context_deviation: float
    longest_context: float
    in_step: bool

    def peak_tokens(self, running: Ints) -> Floats:
        """Most tokens that ``running`` sequences hold at once."""
        if self.in_step:
            return np.asarray(running * self.longest_context, dtype=np.float64)
        peak = running * self.mean_context + PEAK_DEVIATIONS * np.sqrt(running) * self.context_deviation
        return np.asarray(np.minimum(peak, running * self.longest_context), dtype=np.float64)


@functools.lru_cache(maxsize=1024)
def steady_state(prompt_tokens: float, response: LengthDistribution) -> SteadyState:
    """What the running sequences hold when their responses are drawn from one distribution for ever.

    Parameters
    ----------
    prompt_tokens
        Of each sequence.
    response
        Distribution of the response lengths.

    Returns
    -------
    SteadyState
        Tokens of a running sequence.

    Notes
    -----
    Source: length-biased sampling of renewal theory (the inspection paradox); exact as the number of quantiles grows.
    """
    lengths = response.sample(NUM_QUANTILES)
    mean = float(lengths.mean())
    so_far, square = float((lengths**2).mean() / mean / 2.0), float((lengths**3).mean() / mean / 3.0)
    deviation = math.sqrt(max(square - so_far**2, 0.0))
    in_step = bool(lengths[0] == lengths[-1])
    return SteadyState(mean, prompt_tokens + so_far, deviation, prompt_tokens + response.maximum, in_step)
