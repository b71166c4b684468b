"""The factors that a calibration moves, and prices with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.calibration import FACTORS, UNCALIBRATED, UNMOVED, Calibration, digest_of, factors_of_calls
from profiles.host_times import BEFORE_CALLS, IN_PASSES, slowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiles.calibration import CalibrationFile
    from profiles.records import Floats
    from simulator.facts import Facts


@dataclass(frozen=True)
class Belief:
    """What is known of the factors: their logarithms are normal.

    Parameters
    ----------
    log_factors
        Means in the order of ``FACTORS``.
    covariance
        Their covariance, ``[F, F]``.
    scale
        Of the prior that they started from, over ``WIDTHS``.
    of_calls
        Covariance of how far whole calls are off, ``[F, F]``, where seconds beside a factor are known with it only;
        ``None`` where it is that of the factors.
    """

    log_factors: Floats
    covariance: Floats
    scale: float = 1.0
    of_calls: Floats | None = None

    @property
    def whole(self) -> Belief:
        """The same, with the uncertainty of whole calls in place of the factors'."""
        return self if self.of_calls is None else replace(self, covariance=self.of_calls, of_calls=None)

    @property
    def precision(self) -> Floats:
        """Inverse of the covariance."""
        return np.asarray(np.linalg.inv(self.covariance), dtype=np.float64)

    @property
    def deviations(self) -> dict[str, float]:
        """Standard deviation of each logarithm, by factor."""
        return dict(zip(FACTORS, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @property
    def learned(self) -> tuple[str, ...]:
        """The factors that runs said something of; of the others prices stay those of tables and engine files."""
        return tuple(name for name, left in self.whole.deviations.items() if left < KNOWN * self.scale * WIDTHS[name])

    @property
    def factors(self) -> dict[str, float]:
        """The median of each factor."""
        return dict(zip(FACTORS, np.exp(self.log_factors).tolist(), strict=True))


WIDTHS = {
    "generation": 0.10,
    "generation_host": 0.20,
    "training": 0.10,
    "training_host": 0.20,
    "scoring": 0.10,
    "reference": 0.05,
    "transition": 0.30,
}
"""Standard deviations before anything was measured, of prices that are as good as they usually are: families of
published training rows lie 0.12 from each other, with the noise of their rows. What is priced badly has its scale."""


KNOWN = 0.8
"""A factor counts as learned where a run left less than this share of its uncertainty."""

FAR = 2.5
"""Standard deviations between two runs that are no chance any more."""


def prior(scale: float = 1.0) -> Belief:
    """What is believed before a run was measured: prices are right, give or take ``scale`` times ``WIDTHS``."""
    return Belief(np.zeros(len(FACTORS)), np.diag([(scale * WIDTHS[name]) ** 2 for name in FACTORS]), scale)


def calibrated(facts: Facts, calibration: Calibration) -> Facts:
    """The same job with prices as a calibration has them.

    Parameters
    ----------
    facts
        Uncalibrated.
    calibration
        The layer.

    Returns
    -------
    Facts
        Host times of both engines and what comes before calls multiplied, and the layer where calls are priced.
    """
    host = {side: calibration.host.get(side, 1.0) for side in ("generation", "training")}
    return replace(
        facts,
        generation=slowed(facts.generation, host["generation"], IN_PASSES),
        training=slowed(slowed(facts.training, host["training"], IN_PASSES), calibration.dispatch, BEFORE_CALLS),
        calibration=calibration,
    )


def uncalibrated(facts: Facts) -> Facts:
    """The same job with prices as tables and engine files have them."""
    host = facts.calibration.host
    training = slowed(facts.training, 1.0 / host.get("training", 1.0), IN_PASSES)
    return replace(
        facts,
        generation=slowed(facts.generation, 1.0 / host.get("generation", 1.0), IN_PASSES),
        training=slowed(training, 1.0 / facts.calibration.dispatch, BEFORE_CALLS),
        calibration=UNCALIBRATED,
    )


def without_dispatch(facts: Facts) -> Facts:
    """Prices of calls as a measured timeline has them: what comes before a call is no part of it."""
    return replace(facts, training=slowed(facts.training, 0.0, BEFORE_CALLS))


def calibration_of(
    belief: Belief, seconds_per_sample: Mapping[str, float], digest: str = "", source: str = ""
) -> Calibration:
    """The layer that a belief stands for: the median of each factor."""
    factors = belief.factors
    return Calibration(
        factors_of_calls(factors),
        digest,
        {side: factors[f"{side}_host"] for side in ("generation", "training")},
        dict(seconds_per_sample),
        tuple(tuple(row) for row in belief.whole.covariance.tolist()),
        source,
    )


def belief_of(file: CalibrationFile) -> Belief:
    """What a layer's file says of the factors."""
    of_calls = None if file.of_calls is None else np.asarray(file.of_calls)
    return Belief(np.asarray(file.log_factors), np.asarray(file.covariance), file.prior_scale, of_calls)


def layer_of(files: Sequence[CalibrationFile]) -> Calibration:
    """One layer of several files, each from a run of its own; ``UNCALIBRATED`` of none."""
    if not files:
        return UNCALIBRATED
    keys = dict.fromkeys(key for file in files for key in file.seconds_per_sample)
    seconds = {
        key: float(np.mean([f.seconds_per_sample[key] for f in files if key in f.seconds_per_sample])) for key in keys
    }
    digest = "+".join(digest_of(file) for file in files)
    beliefs = [belief_of(file) for file in files]
    apart = {name for i, one in enumerate(beliefs) for other in beliefs[:i] for name in contradictions(one, other)}
    said = ", ".join(f"{file.steps:,} steps of {file.source} ({file.system}, {file.date})" for file in files)
    together = combined(beliefs)
    found = calibration_of(together, seconds, digest, said)
    before = float(np.exp(np.mean([np.log(file.dispatch) for file in files if file.dispatch != UNMOVED] or [0.0])))
    memory = max((file.peak.factor for file in files if file.peak is not None), default=1.0)
    named = tuple(name for name in FACTORS if name in apart)
    return replace(found, apart=named, learned=together.learned, memory=memory, dispatch=before)


def contradictions(first: Belief, second: Belief) -> list[str]:
    """Factors on which two runs differ by more than ``FAR`` of what each leaves open."""
    apart = np.abs(first.log_factors - second.log_factors)
    allowed = FAR * np.sqrt(np.diag(first.covariance) + np.diag(second.covariance))
    return [name for name, far in zip(FACTORS, apart > allowed, strict=True) if far]


def combined(beliefs: Sequence[Belief]) -> Belief:
    """What several runs say together: what each learned beyond its own prior, added to the widest of these."""
    start = prior(max(belief.scale for belief in beliefs))
    learned = [belief.precision - prior(belief.scale).precision for belief in beliefs]
    precision = start.precision + sum(learned)
    weighted = sum(belief.precision @ belief.log_factors for belief in beliefs)
    covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    if all(belief.of_calls is None for belief in beliefs):
        return Belief(covariance @ weighted, covariance, start.scale)
    whole = combined([belief.whole for belief in beliefs]).covariance
    return Belief(covariance @ weighted, covariance, start.scale, whole)
