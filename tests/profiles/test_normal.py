"""Protects the normal distribution: as SciPy has it, out to the tails."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from profiles import normal


def test_quantiles_are_scipys():
    level = np.asarray([[0.0, 1e-300, 1e-9, 0.01], [0.5, 0.5, 1 - 1e-9, 1.0]])
    assert normal.quantile(level) == pytest.approx(ndtri(level), rel=1e-12)
    assert normal.quantile(0.99).shape == ()


@pytest.mark.parametrize("z", [-30.0, -3.0, 0.0, 0.7, 9.0])
def test_probabilities_are_scipys(z):
    assert normal.below(z) == pytest.approx(float(ndtr(z)), rel=1e-12)
