"""Whether the faster of two rows is predicted faster, and what taking the predicted best of many costs."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from benchmarks.validation.report import is_rate

if TYPE_CHECKING:
    import pandas as pd

WHOLE = ("tokens_per_s_per_gpu", "step_time_s", "iteration_s", "throughput_tokens_per_s", "tpot_ms")
"""What stands for a whole row, first that it publishes: only rates of GPUs compare jobs of other size."""
TIE = 0.05
"""Rows closer than this are measured equal: runs of one configuration spread by as much."""


def order_and_regret(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By table: pairs of rows of one model and device, the share in the right order, and the regret of the best.

    Parameters
    ----------
    frame
        A report.

    Returns
    -------
    list[dict[str, Any]]
        ``table``, ``pairs``, ``in order`` (share), ``choices`` (groups of two rows and more), ``regret`` (mean loss of
        the row that is predicted best against the one that is best).
    """
    rows = frame[frame["predicted"].notna() & frame["quantity"].isin(WHOLE) & (frame["measured"] > 0)]
    rows = rows.assign(rank=rows["quantity"].map(WHOLE.index)).sort_values("rank", kind="stable")
    rows = rows.drop_duplicates(["table", "figure", "id"])
    model_and_device = rows["family"].str.rsplit(" | ", n=1).str[0]
    found = []
    for table, part in rows.groupby("table", sort=True):
        right = pairs = choices = 0
        regret = 0.0
        for _, group in part.groupby([model_and_device.loc[part.index], part["quantity"], part["figure"]]):
            good, size = _pairs(group)
            right, pairs = right + good, pairs + size
            if len(group) > 1:
                choices, regret = choices + 1, regret + _regret(group)
        if pairs:
            line = {"table": table, "pairs": pairs, "in order": right / pairs, "choices": choices}
            found.append({**line, "regret": regret / choices})
    return found


def _pairs(group: pd.DataFrame) -> tuple[int, int]:
    """Pairs in the right order, and pairs, of the rows of a group that differ by more than a tie."""
    right = pairs = 0
    for (m1, p1), (m2, p2) in combinations(group[["measured", "predicted"]].to_numpy(), 2):
        if max(m1, m2) / min(m1, m2) - 1.0 > TIE:
            pairs += 1
            right += (m1 < m2) == (p1 < p2)
    return int(right), pairs


def _regret(group: pd.DataFrame) -> float:
    """How much slower the row that is predicted best is than the one that is best."""
    rate = is_rate(str(group["quantity"].iloc[0]))
    taken = group.loc[group["predicted"].idxmax() if rate else group["predicted"].idxmin(), "measured"]
    best = group["measured"].max() if rate else group["measured"].min()
    return float(best / taken - 1.0 if rate else taken / best - 1.0)
