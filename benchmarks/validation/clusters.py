"""Clusters of published rows by what is predicted, of what and on what, and which of them can be judged.

A cluster is a path from the general to the special. Rows of one family are off alike, so what can be said of a cluster
depends on its families: of fewer than ``FEW``, one that lies outside leaves less than 85 % inside whatever the width.
Such a cluster has at least the range of the smallest one around it that has enough, and is judged with all rows there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.validation.report import is_rate, is_time
from simulator.uncertainty import DEVICE_FAMILIES, UNTABLED, device_family

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

FEW = 7
"""Families of which one outside leaves more than 85 % of them inside."""
STAGES = ("gen", "logprob", "old_logprob", "ref_logprob", "critic", "train", "refit", "other")


def cluster(table: str, quantity: str, model_kind: str, schedule: str, device: str, system: str = "") -> str:
    """The cluster of a published quantity; empty for one that is no time, rate or memory.

    The systems that the paper compares itself with are all priced by rules from what their code does: they are alike.
    """
    kind, part = model_kind or "dense", device_family(device)
    if quantity == "peak_mem_gib":
        return f"memory/{kind}"
    if not (is_time(quantity) or is_rate(quantity)):
        return ""
    if table == "paper":
        return f"paper/{quantity}/{'hybridflow' if system.startswith('hybridflow') else 'baselines'}"
    if table == "training":
        return f"training/{kind}/{part}"
    if table == "generation":
        return f"generation/{quantity}/{kind}/{part}"
    if quantity.removesuffix("_time_s") in STAGES:
        return f"stage/{quantity}/{kind}/{part}"
    return f"rl/{kind}/{'sync' if schedule in ('', 'sync') else 'overlapped'}/{part}"


def judged_by(rows: pd.DataFrame, path: str) -> str:
    """The smallest cluster around a path with ``FEW`` families in it; its table where none has as many.

    Parts without tables say nothing of others, nor others of them: all of them are one, ``UNTABLED``.
    """
    if is_untabled(path):
        return UNTABLED
    while "/" in path and rows["family"][members(rows, path)].nunique() < FEW:
        path = path.rpartition("/")[0]
    return path


def members(rows: pd.DataFrame, name: str) -> list[bool]:
    """Which rows lie in a cluster; those on parts without tables are in ``UNTABLED`` alone."""
    if name == UNTABLED:
        return [is_untabled(own) for own in rows["cluster"]]
    return [holds(name, own) and not is_untabled(own) for own in rows["cluster"]]


def paths_of(clusters: Iterable[str]) -> set[str]:
    """The clusters, their beginnings, and of those that end in a family of devices the other families."""
    found = set()
    for own in clusters:
        parts = own.split("/")
        found |= {"/".join(parts[: n + 1]) for n in range(len(parts))}
        if parts[-1] in DEVICE_FAMILIES:
            found |= {"/".join([*parts[:-1], family]) for family in DEVICE_FAMILIES}
    return found


def holds(path: str, own: str) -> bool:
    """Whether ``own`` is ``path`` or lies in it."""
    return own == path or own.startswith(f"{path}/")


def is_untabled(path: str) -> bool:
    """Whether a path ends in the parts without tables."""
    return path.endswith(f"/{UNTABLED}")
