"""Releases that came after all rows: what their steps may differ by widens the interval of a row that has one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from simulator.uncertainty import NINETY

if TYPE_CHECKING:
    import pandas as pd

NEWEST: dict[str, tuple[int, int]] = {
    "nemo rl": (0, 7),
    "megatron bridge": (0, 6),
    "verl": (0, 9),
    "vllm": (0, 32),
    "sglang": (0, 5),
    "tensorrt llm": (1, 3),
    "torchtitan": (0, 2),
}
"""Newest release of each system whose facts or published rows we have, by its name in a family's key."""

SPREAD = 0.13
"""Standard deviation of a step's logarithm from one release to the next: root mean square of Megatron-Bridge's rates of
one model on one part (``spread_of``), 0.1.0 to 0.5.1. Two pairs of 24, whole iterations in graphs and larger
micro-batches, are most of it."""


def is_newer(family: str) -> bool:
    """Whether a family (``model | device | release``) has a release that is newer than all that is known.

    Parameters
    ----------
    family
        As ``families.family_of`` writes it.

    Returns
    -------
    bool
        False where no release is stated.
    """
    words = family.rpartition("|")[2]
    for name, newest in NEWEST.items():
        for found in re.finditer(rf"\b{name} v?(\d+)\.(\d+)", words):
            if (int(found[1]), int(found[2])) > newest:
                return True
    return False


def widened(factor: float, family: str) -> float:
    """A bound of an interval, as a factor on the prediction, wider for a release that nobody has seen.

    Parameters
    ----------
    factor
        Below or above 1.
    family
        Of the row.

    Returns
    -------
    float
        On the same side of 1; both errors as of one normal distribution.
    """
    if not is_newer(family):
        return factor
    width = float(np.hypot(np.log(factor), NINETY * SPREAD))
    return float(np.exp(width if factor >= 1.0 else -width))


def spread_of(table: pd.DataFrame) -> float:
    """Root mean square of the logarithm between rates of successive releases of Megatron-Bridge.

    Parameters
    ----------
    table
        Published training rows.

    Returns
    -------
    float
        Over all models and parts; a release counts once, with the mean of its rows.
    """
    releases = table["system"].str.extract(r"Megatron-Bridge v(\d+\.\d+\.\d+)", expand=False)
    rates = np.log(table["tokens_per_s_per_gpu"].astype(float))
    known = releases.notna() & rates.notna()
    keys = [table["model"][known], table["gpu_kind"][known], releases[known]]
    by_release = rates[known].groupby(keys).mean()
    steps = by_release.groupby(level=[0, 1]).diff().dropna()
    return float(np.sqrt((steps**2).mean()))
