"""What a calibration leaves open of an iteration's time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.calibration import CALLS, FACTORS
from profiles.host_times import IN_PASSES, slowed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simulator.facts import Facts

PLAN_ERROR = 0.07
"""Relative: repeats of one configuration spread by 5 %, and right factors leave as much between two layouts."""

STEP = 0.05


def left_open(
    facts: Facts,
    alone_s: Mapping[str, float],
    end_s: Callable[[Mapping[str, float]], float],
    priced_s: Callable[[Facts], Mapping[str, float]],
) -> float | None:
    """Standard deviation of the logarithm of an iteration's time.

    Parameters
    ----------
    facts
        The job's, with its calibration.
    alone_s
        Seconds of each call alone, as priced with it.
    end_s
        When the iteration ends, given seconds of each call.
    priced_s
        Seconds of each call alone, given other facts.

    Returns
    -------
    float or None
        Of the factors by their covariance, to first order, and ``PLAN_ERROR``; ``None`` without a calibration.
    """
    if not facts.calibration.covariance:
        return None
    now = np.log(end_s(alone_s))
    slopes = np.asarray([(np.log(end_s(_moved(name, facts, alone_s, priced_s))) - now) / STEP for name in FACTORS])
    return float(np.sqrt(slopes @ np.asarray(facts.calibration.covariance) @ slopes + PLAN_ERROR**2))


def _moved(
    name: str, facts: Facts, alone_s: Mapping[str, float], priced_s: Callable[[Facts], Mapping[str, float]]
) -> Mapping[str, float]:
    """Seconds of each call with one factor ``STEP`` further up in its logarithm."""
    factor = float(np.exp(STEP))
    if name == "generation_host":
        return priced_s(replace(facts, generation=slowed(facts.generation, factor, IN_PASSES)))
    if name == "training_host":
        return priced_s(replace(facts, training=slowed(facts.training, factor, IN_PASSES)))
    apis = {call.key: call.api for call in facts.dataflow.calls}
    return {key: s * factor if apis[key] in CALLS[name] else s for key, s in alone_s.items()}
