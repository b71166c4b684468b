"""Plans measured in turns, and again where visits do not agree. A visit is one run of one plan.

A machine's other work comes and goes, and so do its clocks: a visit counts if it repeats, which is told without a look
at any prediction. Not the fastest counts: of twelve visits to each of five plans on a shared machine one was far faster
than what the others agreed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

CALM = 0.05
"""Visits whose medians lie so close to each other repeat: those of an idle machine do, to 1 to 5 %."""
AT_MOST = 2
"""So many times the wanted visits are made of a plan that does not come to rest."""

Visit = list["Timeline"]


def median_s(visit: Sequence[Timeline]) -> float:
    """Seconds of a visit's median iteration."""
    return float(np.median([t.iteration_s for t in visit]))


def calm(visits: Sequence[Visit]) -> list[Visit]:
    """The most visits that repeat one another, in the order that they were made; of as many the faster ones."""
    best: list[Visit] = []
    for fastest in sorted(median_s(visit) for visit in visits):
        alike = [visit for visit in visits if fastest <= median_s(visit) <= (1.0 + CALM) * fastest]
        best = alike if len(alike) > len(best) else best
    return best


def visit_until_calm(
    plans: Mapping[str, Plan], wanted: int, visit: Callable[[Plan], Visit]
) -> tuple[dict[str, list[Visit]], dict[str, int]]:
    """Calm visits of every plan, ``wanted`` of each where the machine lets it, and how many more were made.

    All plans are visited in turn, so that a disturbance does not hit one of them alone.
    """
    made: dict[str, list[Visit]] = {name: [] for name in plans}
    for _ in range(AT_MOST * wanted):
        for name, plan in plans.items():
            if len(calm(made[name])) < wanted:
                made[name].append(visit(plan))
    kept = {name: calm(visits) for name, visits in made.items()}
    return kept, {name: len(made[name]) - len(kept[name]) for name in plans}
