"""Rows of one family are off alike: what one of many counts, by the correlation that their errors show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from profiles.records import Floats


def counts(rows: pd.DataFrame) -> Floats:
    """What each row counts: ``n`` of one family and cluster together ``n / (1 + (n - 1) rho)``, the design effect.

    ``rho`` is the ``correlation`` of all rows of the table (Kish, Survey Sampling, 1965, section 5.4).
    """
    together = rows.groupby(["cluster", "family"])["size"].transform("size").to_numpy(dtype=np.float64)
    rho = _tables(rows).map(correlations(rows)).to_numpy(dtype=np.float64)
    return np.asarray(1.0 / (1.0 + (together - 1.0) * rho))


def correlations(rows: pd.DataFrame) -> dict[str, float]:
    """By table, the beginning of a cluster: the ``correlation`` of its rows."""
    return {str(name): correlation(part) for name, part in rows.groupby(_tables(rows))}


def _tables(rows: pd.DataFrame) -> pd.Series:
    return rows["cluster"].map(lambda path: path.partition("/")[0])


def correlation(rows: pd.DataFrame) -> float:
    """Correlation within a family of how far its rows are off, beside the other families of its cluster.

    Intra-class, by one-way analysis of variance; 0 where rows of a family are no more alike than others are, or where
    nothing says.
    """
    families, clusters = rows.groupby(["cluster", "family"])["size"], rows.groupby("cluster")["size"]
    apart, repeated = families.ngroups - clusters.ngroups, len(rows) - families.ngroups
    if not apart or not repeated:
        return 0.0
    mean = families.transform("mean")
    between = float(((mean - clusters.transform("mean")) ** 2).sum()) / apart
    within = float(((rows["size"] - mean) ** 2).sum()) / repeated
    of_a_family = (len(rows) - float((families.transform("size") / clusters.transform("size")).sum())) / apart
    whole = between + (of_a_family - 1.0) * within
    return float(np.clip((between - within) / whole, 0.0, 1.0)) if whole > 0 else 0.0
