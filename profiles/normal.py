"""The standard normal distribution for arrays, by Python's own library: to import SciPy's takes a third of a second."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from profiles.records import Floats

_STANDARD = NormalDist()


def below(z: float) -> float:
    """Probability of a value below ``z`` standard deviations; keeps its digits far out on the left, too."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def quantile(level: ArrayLike) -> Floats:
    """Standard deviations below which a value lies with probability ``level``, same shape; infinite at 0 and 1."""
    levels, of_each = np.unique(np.asarray(level, dtype=np.float64), return_inverse=True)
    found = [_STANDARD.inv_cdf(p) if 0.0 < p < 1.0 else math.copysign(math.inf, p - 0.5) for p in levels.tolist()]
    return np.asarray(found, dtype=np.float64)[of_each].reshape(np.shape(level))
