"""What an imported run takes and what its changes gain, in two lines: the answer of ``hybridmap import``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.text.notation import about, percent
from hybridmap.text.plan import interval_s

if TYPE_CHECKING:
    from hybridmap.exports.advice import Advice
    from simulator.plan.timeline import Timeline


def answer_lines(now: Timeline | None, advice: Advice, system: str) -> list[str]:
    """How long the run takes as it is, and what it could take; how surely is told below, plan by plan."""
    if now is None:
        first = "your run does not fit by its worst case"
    else:
        low, high = interval_s(now)
        interval = f"{about(low)} to {about(high)} s, 90 % interval"
        first = f"your run takes about {about(now.iteration_s)} s an iteration ({interval})"
    return [first, _then(now, advice, system)]


def _then(now: Timeline | None, advice: Advice, system: str) -> str:
    if advice.reason:
        return f"of plans that {system} can run none was found"
    if not advice.steps or advice.iteration_s is None:
        best = advice.best.iteration_s if advice.iteration_s is None else advice.iteration_s
        return f"leave it: it is within 2 % of the best that was found, about {about(best)} s"
    keys = "1 key" if len(advice.changes) == 1 else f"{len(advice.changes)} keys"
    gain = "" if now is None else f" ({percent(1.0 - advice.iteration_s / now.iteration_s)} less)"
    return f"with {keys} changed about {about(advice.iteration_s)} s{gain}, under this model; the steps are below"
