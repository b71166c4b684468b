"""Whether a plan file still says what was computed: nobody edited it, and prices are what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridmap.files.plan import PlanFile


def changed_since(file: PlanFile, path: str, facts_hash: str, now_s: float) -> str | None:
    """What to say of a file from ``path`` that was edited or whose prices are no longer those of today.

    ``facts_hash`` and ``now_s`` are the job's prices and the plan's iteration by them. ``None``: it holds as it is.
    """
    seconds = f"it says {file.iteration_s:,.2f} s per iteration, now {now_s:,.2f} s"
    if file.is_edited:
        return (
            f"{path} was edited after it was written: {seconds} by the prices of its plan; its proof counts no more, "
            "plan again for one"
        )
    if file.facts_hash != facts_hash:
        then, today = file.facts_hash[:8], facts_hash[:8]
        return f"prices changed since {path} was made (profile data {then} then, {today} now): {seconds}; plan again"
    if file.iteration_s != now_s:
        return f"{path} says {file.iteration_s:,.2f} s per iteration, this version prices {now_s:,.2f} s; plan again"
    return None
